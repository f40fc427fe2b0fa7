#define ROW avx2
#include "simd_impl.h"
