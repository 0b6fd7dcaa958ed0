/* A floor for the record sweep: Algorithm 1 of Ju et al. on one chain, as little as a record can cost. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

static uint64_t state[4];

static uint64_t next(void) { /* xoshiro256+ */
    const uint64_t result = state[0] + state[3], t = state[1] << 17;
    state[2] ^= state[0];
    state[3] ^= state[1];
    state[1] ^= state[2];
    state[0] ^= state[3];
    state[2] ^= t;
    state[3] = (state[3] << 45) | (state[3] >> 19);
    return result;
}

static double uniform(void) { return ((next() >> 11) + 0.5) * 0x1.0p-53; }

static double normal(void) { /* Marsaglia's polar method */
    static double spare;
    static int kept = 0;
    double a, b, s;
    if (kept) {
        kept = 0;
        return spare;
    }
    do {
        a = 2 * uniform() - 1;
        b = 2 * uniform() - 1;
        s = a * a + b * b;
    } while (s >= 1 || s == 0);
    s = sqrt(-2 * log(s) / s);
    spare = a * s;
    kept = 1;
    return b * s;
}

static double mapped(double v) { return (v < -10 ? -10 : v > 10 ? 10 : v) / 10; }

static void row(const double *record, double *out) {
    const double a = mapped(record[0]), b = mapped(record[1]), c = mapped(record[2]);
    out[0] = c, out[1] = a * c, out[2] = b * c, out[3] = c * c, out[4] = a, out[5] = b;
    out[6] = a * a, out[7] = a * b, out[8] = b * b;
}

/* Sweeps over n records (x1, x2, y); the share of proposals that were taken. */
double sweep(double *records, long n, const double *released, double scale, const double *beta, const double *mean,
             double sd, long sweeps, uint64_t seed) {
    double total[9] = {0}, old[9], new[9], proposed[3];
    long taken = 0;
    for (int k = 0; k < 4; k++)
        state[k] = seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
    for (long i = 0; i < n; i++) {
        row(records + 3 * i, old);
        for (int k = 0; k < 9; k++)
            total[k] += old[k];
    }
    for (long turn = 0; turn < sweeps; turn++)
        for (long i = 0; i < n; i++) {
            double now = 0, then = 0;
            proposed[0] = mean[0] + normal();
            proposed[1] = mean[1] + normal();
            proposed[2] = beta[0] + beta[1] * proposed[0] + beta[2] * proposed[1] + sd * normal();
            row(records + 3 * i, old);
            row(proposed, new);
            for (int k = 0; k < 9; k++) {
                now += fabs(released[k] - total[k]);
                then += fabs(released[k] - total[k] - new[k] + old[k]);
            }
            if (then <= now || log(uniform()) * scale < now - then) {
                for (int k = 0; k < 9; k++)
                    total[k] += new[k] - old[k];
                for (int k = 0; k < 3; k++)
                    records[3 * i + k] = proposed[k];
                taken++;
            }
        }
    return (double)taken / n / sweeps;
}
