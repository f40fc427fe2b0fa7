#define ROW neon
#include "simd_impl.h"
