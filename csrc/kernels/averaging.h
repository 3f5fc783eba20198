/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moving a model towards another one, and taking what others have given to it, so that
 * nothing is lost to rounding: what is given is what the model really lost, what is
 * taken off the sum is what the model really gained. float32 or float64, by the held
 * dtype. No two arrays overlap, except where said; momentum may be NULL.
 */
#ifndef PCOLL_KERNELS_AVERAGING_H
#define PCOLL_KERNELS_AVERAGING_H

#include <stddef.h>

/* x becomes x - weight (x - theirs), rounded; given, what it has lost; momentum loses
 * ratio times that. given may be theirs. */
void average_float32(float *x, const float *theirs, float *momentum, float *given,
                     double weight, double ratio, size_t count);
void average_float64(double *x, const double *theirs, double *momentum, double *given,
                     double weight, double ratio, size_t count);

/* x becomes x + sum, rounded; sum, minus what it has gained; momentum gains ratio times
 * that. */
void collect_float32(float *x, float *momentum, float *sum, double ratio, size_t count);
void collect_float64(double *x, double *momentum, double *sum, double ratio,
                     size_t count);

/* x becomes x / divisor. */
void divide_float32(float *x, float divisor, size_t count);
void divide_float64(double *x, double divisor, size_t count);

#endif
