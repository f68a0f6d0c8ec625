#include "utf8.h"

int utf8_next(const unsigned char *bytes, size_t length)
{
    if (length == 0)
        return 0;
    const unsigned first = bytes[0];
    const int size = first < 0x80 ? 1 : first < 0xC2 ? 0 : first < 0xE0 ? 2
        : first < 0xF0 ? 3 : first < 0xF5 ? 4 : 0;
    unsigned least = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
    unsigned most = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
    if (size == 0)
        return -1;
    for (int k = 1; k < size; k++) {
        if ((size_t)k == length)
            return 0;
        if (bytes[k] < least || bytes[k] > most)
            return -k;
        least = 0x80, most = 0xBF;
    }
    return size;
}

int utf8_cut(const void *bytes, size_t length, int limit)
{
    const unsigned char *text = bytes;
    size_t at = 0;
    int size = 0;
    do {
        at += (size_t)size;
        size = utf8_next(text + at, length - at);
    } while (size > 0 && at + (size_t)size <= (size_t)limit);
    return (int)at;
}
