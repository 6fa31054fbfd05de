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

  T* group(const int32_t* table, int head, int index) const {
    const int per_block = block_size / GROUP;
    const size_t block = table[index / per_block];
    return data + ((block * heads + head) * per_block + index % per_block) * (2 * GROUP * head_dim);
  }
  const T* values(const T* group) const { return group + GROUP * head_dim; }

  void write(const int32_t* table, int position, int head, const T* key, const T* value) const {
    constexpr int W = Packed<T>::PER_WORD;
    T* keys = group(table, head, position / GROUP);
    T* values = keys + GROUP * head_dim;
    const int slot = position % GROUP;
    for (int d = 0; d < head_dim; d++) {
      keys[(d / W * GROUP + slot) * W + d % W] = key[d];
      values[(slot / W * head_dim + d) * W + slot % W] = value[d];
    }
  }
};

}  // namespace tg
