/* Messages that can be checked: length and bytes follow from the sequence. support.rs in this directory has the same pattern. */
#ifndef PATTERN_H
#define PATTERN_H
#include <stddef.h>
#include <stdint.h>

enum { LARGEST = 64 << 10 };

static inline size_t pattern_length(uint64_t sequence) {
    uint32_t hash = (uint32_t)(sequence * 2654435761u) >> 7;
    switch (sequence % 8) {
    case 0: return 0;
    case 1: return LARGEST - hash % 3;
    case 2: return hash % 2048;
    default: return hash % 200;
    }
}

static inline uint8_t pattern_byte(uint64_t sequence, size_t i) { return (uint8_t)(sequence * 31 + i * 7 + (i >> 8)); }

static inline void pattern_fill(uint64_t sequence, uint8_t *bytes) {
    for (size_t i = 0, length = pattern_length(sequence); i < length; i++) bytes[i] = pattern_byte(sequence, i);
}

/* The number of wrong bytes. A wrong length counts as one. */
static inline uint64_t pattern_wrong(uint64_t sequence, const uint8_t *bytes, size_t length) {
    uint64_t wrong = length != pattern_length(sequence);
    for (size_t i = 0; i < length; i++) wrong += bytes[i] != pattern_byte(sequence, i);
    return wrong;
}
#endif
