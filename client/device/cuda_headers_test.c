/* Our declarations of the driver's functions beside the Toolkit's: sizes, offsets, numbers, types and symbols. */
#include "client/device/cuda.h"

#include <stdio.h>
#include <string.h>

#if __has_include(<cuda.h>) /* tests/tidy reads this file on every host */
#include <cuda.h>

#define SAME(ours, theirs)                                                                         \
    _Static_assert((unsigned long long)(ours) == (unsigned long long)(theirs), #ours)

SAME(CUDA_SUCCESS_, CUDA_SUCCESS);
SAME(CUDA_INVALID_VALUE_, CUDA_ERROR_INVALID_VALUE);
SAME(CUDA_NOT_READY_, CUDA_ERROR_NOT_READY);
SAME(CUDA_MEMORY_HOST_, CU_MEMORYTYPE_HOST);
SAME(CUDA_MEMORY_DEVICE_, CU_MEMORYTYPE_DEVICE);
SAME(CUDA_HOST_REGISTER_PORTABLE_, CU_MEMHOSTREGISTER_PORTABLE);
SAME(CUDA_STREAM_NON_BLOCKING_, CU_STREAM_NON_BLOCKING);
SAME(CUDA_EVENT_DISABLE_TIMING_, CU_EVENT_DISABLE_TIMING);
SAME(CUDA_ATTRIBUTE_MAX_PITCH_, CU_DEVICE_ATTRIBUTE_MAX_PITCH);

SAME(sizeof(struct cuda_memcpy2d), sizeof(CUDA_MEMCPY2D));
#define SAME_MEMBER(ours, theirs)                                                                  \
    SAME(offsetof(struct cuda_memcpy2d, ours), offsetof(CUDA_MEMCPY2D, theirs));                   \
    SAME(sizeof(((struct cuda_memcpy2d *)0)->ours), sizeof(((CUDA_MEMCPY2D *)0)->theirs))
SAME_MEMBER(src_x, srcXInBytes);
SAME_MEMBER(src_y, srcY);
SAME_MEMBER(src_type, srcMemoryType);
SAME_MEMBER(src_host, srcHost);
SAME_MEMBER(src_device, srcDevice);
SAME_MEMBER(src_array, srcArray);
SAME_MEMBER(src_pitch, srcPitch);
SAME_MEMBER(dst_x, dstXInBytes);
SAME_MEMBER(dst_y, dstY);
SAME_MEMBER(dst_type, dstMemoryType);
SAME_MEMBER(dst_host, dstHost);
SAME_MEMBER(dst_device, dstDevice);
SAME_MEMBER(dst_array, dstArray);
SAME_MEMBER(dst_pitch, dstPitch);
SAME_MEMBER(width, WidthInBytes);
SAME_MEMBER(height, Height);

/* Function types; the one that takes our struct stands in the header's place. */
typedef CUresult copy_2d_type(const CUDA_MEMCPY2D *, CUstream);
_Static_assert(__builtin_types_compatible_p(__typeof__(cuMemcpy2DAsync), copy_2d_type), "copy_2d");
#define CHECK_TYPE(member, symbol, name, parameters)                                               \
    _Static_assert(__builtin_types_compatible_p(__typeof__(name), unsigned parameters) ||          \
                       __builtin_types_compatible_p(__typeof__(name), copy_2d_type),               \
                   symbol);
CUDA_FUNCTIONS(CHECK_TYPE)

/* The header's macros say which version of a function its declarations mean. */
#define TEXT_(name) #name
#define TEXT(name) TEXT_(name)

int main(void)
{
    int wrong = 0;
#define CHECK_SYMBOL(member, symbol, name, parameters)                                             \
    if (strcmp(symbol, TEXT(name)) != 0) {                                                         \
        (void)fprintf(stderr, "we load %s, the header means %s\n", symbol, TEXT(name));            \
        wrong = 1;                                                                                 \
    }
    CUDA_FUNCTIONS(CHECK_SYMBOL)
    return wrong;
}

#else

int main(void)
{
    return 0;
}

#endif
