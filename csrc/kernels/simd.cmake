# One row of the kernel table per instruction set: the same sources under other flags, chosen at run time by dispatch.c.
# The properties go to the directory of the target, which is not this one.
# Products may contract into fused multiply-adds here; the portable row keeps them apart.
if(NOT DEFINED SUBBIT_ROW_OPTIMISATION)
  set(SUBBIT_ROW_OPTIMISATION -O3)
endif()
# A vector type in a signature is no ABI question for static functions; clang tells where it did not unroll a loop.
set(SUBBIT_ROW_OPTIONS ${SUBBIT_ROW_OPTIMISATION} -ffp-contract=fast
  $<$<C_COMPILER_ID:GNU>:-Wno-psabi> $<$<C_COMPILER_ID:Clang,AppleClang>:-Wno-pass-failed>)

function(subbit_row row definition)
  target_sources(subbit_core PRIVATE kernels/simd_${row}.c)
  target_compile_definitions(subbit_core PRIVATE ${definition})
  set_source_files_properties(kernels/simd_${row}.c TARGET_DIRECTORY subbit_core PROPERTIES
    COMPILE_OPTIONS "${SUBBIT_ROW_OPTIONS};${ARGN}")
endfunction()

target_sources(subbit_core PRIVATE kernels/table_plan.c)
# AVX-512 is scheduled for the processors that brought VNNI: some percent for its kernels (gcc 12). AVX2 gained nothing
# from the schedule of Haswell.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  subbit_row(sse2 SB_WITH_SSE2 -msse2)
  subbit_row(avx2 SB_WITH_AVX2 -mavx2 -mfma)
  subbit_row(avx512 SB_WITH_AVX512
    -mavx512f -mavx512vl -mavx512bw -mavx512dq -mavx2 -mfma -mprefer-vector-width=512 -mtune=icelake-server)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  subbit_row(neon SB_WITH_NEON)
endif()
