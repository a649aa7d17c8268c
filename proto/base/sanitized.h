/* sanitized.h - is this build sanitized? A sanitizer owns the allocator, shadows the memory and
 * reports crashes itself. */
#ifndef HOLDFAST_PROTO_BASE_SANITIZED_H
#define HOLDFAST_PROTO_BASE_SANITIZED_H

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define IS_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define IS_SANITIZED 1
#endif
#endif
#ifndef IS_SANITIZED
#define IS_SANITIZED 0
#endif

#endif
