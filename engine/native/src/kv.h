// The paged KV pool of one layer and how a token's key and value lie in it.
//
// A block holds, for each KV head, block_size/16 groups of 16 tokens: keys [head_dim/word][16][word], then values
// [16/word][head_dim][word]. All heads of a block are contiguous, so that decode reads memory in long runs.
#pragma once
#include "vec.h"

namespace tg {

constexpr int GROUP = 16;  // tokens

template <class T>
struct KvLayer {
  T* data;
  int heads, head_dim, block_size;

  T* keys(const int32_t* table, int head, int group) const {
    const unsigned per_block = (unsigned)block_size / GROUP, index = (unsigned)group;
    const size_t block = (unsigned)table[index / per_block];
    return data + ((block * heads + head) * per_block + index % per_block) * (2 * GROUP * head_dim);
  }
  T* values(T* keys) const { return keys + GROUP * head_dim; }
  const T* values(const T* keys) const { return keys + GROUP * head_dim; }

  // From a group of one head to the same group of the next.
  size_t head_stride() const { return (size_t)2 * block_size * head_dim; }

  void write(const int32_t* table, int position, int head, const T* key, const T* value) const {
    using Word = typename Packed<T>::Word;
    constexpr int W = Packed<T>::PER_WORD;
    T* k = keys(table, head, position / GROUP);
    const int slot = position % GROUP;
    for (int d = 0; d < head_dim; d += W) std::memcpy(k + (d * GROUP + slot * W), key + d, sizeof(Word));
    scatter(values(k) + slot / W * head_dim * W, slot % W, value);
  }

 private:
  // Every `PER_WORD`-th element of a row. The others may belong to another thread's token: they are not even rewritten.
  void scatter(T* row, int first, const T* value) const {
    constexpr int W = Packed<T>::PER_WORD;
#if defined(__AVX512BW__)
    if constexpr (W == 2) {
      for (int d = 0; d < head_dim; d += LANES) {
        const u32v high = bit_cast<u32v>(load(value + d)), both = high | (high >> 16);
        _mm512_mask_storeu_epi16(row + d * W, first ? 0xaaaaaaaau : 0x55555555u, (__m512i)both);
      }
      return;
    }
#endif
    for (int d = 0; d < head_dim; d++) row[d * W + first] = value[d];
  }
};

}  // namespace tg
