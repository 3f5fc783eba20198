/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Move a model towards another one, and add to a model what others have given it, without
 * losing anything to rounding: the amount given is what the model has really lost, and the
 * amount taken from the sum is what the model has really gained. For float32 and float64.
 * Arrays do not overlap unless stated; momentum may be NULL.
 */
#ifndef PCOLL_KERNELS_AVERAGING_H
#define PCOLL_KERNELS_AVERAGING_H

#include <stddef.h>

/* Set x to x - weight (x - theirs), rounded, and `given` to what x has lost; subtract ratio times
 * that from momentum. `given` may be `theirs`. */
void average_float32(float *x, const float *theirs, float *momentum, float *given,
                     double weight, double ratio, size_t count);
void average_float64(double *x, const double *theirs, double *momentum, double *given,
                     double weight, double ratio, size_t count);

/* Set x to x + sum, rounded, and `sum` to minus what x has gained; add ratio times the gain to
 * momentum. */
void collect_float32(float *x, float *momentum, float *sum, double ratio, size_t count);
void collect_float64(double *x, double *momentum, double *sum, double ratio,
                     size_t count);

/* Divide x by divisor. */
void divide_float32(float *x, float divisor, size_t count);
void divide_float64(double *x, double divisor, size_t count);

#endif
