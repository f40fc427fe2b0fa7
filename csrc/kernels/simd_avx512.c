#define ROW avx512
#include "simd_impl.h"
