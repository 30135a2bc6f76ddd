/* Forced into every C++ build of llama.cpp for x86-64, because GCC may miscompile Intel's AMX (see building.py).

   Old releases of GCC, in which it isn't a builtin, declare that _tile_loadconfig reads 8 bytes. It reads 64, so the
   stores of the other 56 are dropped at -O3, and the processor faults at the first pass over several tokens. */
#if defined(__cplusplus) && defined(__GNUC__) && !defined(__clang__) && defined(__AMX_TILE__)
#include <immintrin.h>
#undef _tile_loadconfig
#define _tile_loadconfig(config) \
    __asm__ volatile("ldtilecfg\t%0" : : "m"(*(const char(*)[64])(config)) : "memory")
#endif
