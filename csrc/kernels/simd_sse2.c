#define ROW sse2
#include "simd_impl.h"
