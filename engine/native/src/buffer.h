// Scratch memory that grows and stays: aligned for whole-line loads, on huge pages where the system gives them.
#pragma once
#include <cstdlib>
#include <cstring>
#include <new>
#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace tg {

template <class T>
class Buffer {
 public:
  Buffer() = default;
  Buffer(const Buffer&) = delete;
  ~Buffer() { std::free(data_); }

  // Room for `count` elements; zeroed when it grows, so that padding holds no NaN.
  void reserve(size_t count) {
    if (count <= count_) return;
    const size_t huge = size_t{2} << 20, bytes = count * sizeof(T), align = bytes >= huge ? huge : 64;
    const size_t rounded = (bytes + align - 1) / align * align;
    std::free(data_);
    count_ = 0;
    data_ = static_cast<T*>(std::aligned_alloc(align, rounded));
    if (!data_) throw std::bad_alloc();
#if defined(MADV_HUGEPAGE)
    if (align == huge) madvise(data_, rounded, MADV_HUGEPAGE);
#endif
    std::memset(static_cast<void*>(data_), 0, rounded);
    count_ = count;
  }
  T* data() const { return data_; }

 private:
  T* data_ = nullptr;
  size_t count_ = 0;
};

}  // namespace tg
