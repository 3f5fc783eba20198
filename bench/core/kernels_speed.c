/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How fast is the sum of float32, in place, against memcpy of as many bytes? Both in
 * turns in one run; prints "bytes sum-ns memcpy-ns" for each size, medians. Built and
 * run by bench/kernels.py.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "kernels/reduce.h"

enum { SAMPLES = 41 };

static int compare(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static int64_t median(int64_t *samples)
{
    qsort(samples, SAMPLES, sizeof *samples, compare);
    return samples[SAMPLES / 2];
}

static void measure(size_t bytes, int repeats)
{
    int64_t sums[SAMPLES], copies[SAMPLES];
    reduce_fn *sum = reduce_kernel(PCOLL_SUM, PCOLL_FLOAT32);
    float *a = aligned_alloc(4096, bytes), *b = aligned_alloc(4096, bytes);
    memset(a, 0, bytes);
    memset(b, 0, bytes);
    for (int i = 0; i < SAMPLES; i++) {
        int64_t begin = clock_ns();
        for (int k = 0; k < repeats; k++)
            sum(a, a, b, bytes / sizeof *a);
        int64_t middle = clock_ns();
        for (int k = 0; k < repeats; k++) {
            memcpy(a, b, bytes);
            __asm__ volatile("" ::: "memory"); /* each copy counts */
        }
        int64_t end = clock_ns();
        sums[i] = (middle - begin) / repeats;
        copies[i] = (end - middle) / repeats;
    }
    printf("%zu %lld %lld\n", bytes, (long long)median(sums),
           (long long)median(copies));
    free(a);
    free(b);
}

int main(void)
{
    measure((size_t)1 << 18, 200);
    measure((size_t)1 << 22, 10);
    measure((size_t)1 << 26, 1);
    return 0;
}
