/* SPDX-License-Identifier: Apache-2.0 */
/* Newton-Schulz coefficient sets.
 *
 * simple        K. Jordan et al., "Muon: an optimizer for hidden layers in neural networks" (2024).
 * quintic       J. You's five tuples, used by modded-nanogpt, Megatron-LM and NVIDIA
 *               Emerging-Optimizers.
 * polar_express N. Amsel et al., "The Polar Express" (arXiv 2505.16932), divided by (f, f^3, f^5)
 * with the safety factor f = 1.05, so that a norm a little above 1 still converges. cans E.
 * Grishina et al., "Accelerating Newton-Schulz iteration with Chebyshev-type polynomials" (arXiv
 * 2506.10935). aol           T. Boissin et al., "Turbo-Muon" (almost-orthogonal-layer
 * preconditioning). deepseekv4    eight simple steps, then two of (2, -1.5, 0.5), which has the
 * fixed point 1. cubic5        five cubic tuples; the fifth-degree term is absent.
 *
 * Values and what happens when the number of steps is not the number of tuples are those of NVIDIA
 * Emerging-Optimizers.
 */
#include <math.h>
#include <string.h>

#include "sched/optim/ns.h"
#include "sched/status.h"

typedef enum iteration_mode { CYCLE, REPEAT_LAST, EXACT } iteration_mode;

typedef struct coefficient_set {
    const char *name;
    iteration_mode mode;
    int num_tuples;
    double safety;
    double tuples[10][3];
} coefficient_set;

static const coefficient_set sets[] = {
    [BRG_NS_QUINTIC] = {"quintic",
                        CYCLE,
                        5,
                        1.0,
                        {{4.0848, -6.8946, 2.9270},
                         {3.9505, -6.3029, 2.6377},
                         {3.7418, -5.5913, 2.3037},
                         {2.8769, -3.1427, 1.2046},
                         {2.8366, -3.0525, 1.2012}}},
    [BRG_NS_SIMPLE] = {"simple", CYCLE, 1, 1.0, {{3.4445, -4.7750, 2.0315}}},
    [BRG_NS_POLAR_EXPRESS] = {"polar_express",
                              REPEAT_LAST,
                              5,
                              1.05,
                              {{8.287212, -23.595887, 17.300387},
                               {4.107059, -2.947850, 0.544843},
                               {3.948691, -2.908902, 0.551819},
                               {3.318420, -2.488488, 0.510049},
                               {2.300652, -1.668904, 0.418807}}},
    [BRG_NS_CANS] = {"cans",
                     REPEAT_LAST,
                     5,
                     1.0,
                     {{8.4703, -25.1081, 18.6293},
                      {4.1828, -3.1087, 0.5806},
                      {3.9619, -2.9541, 0.5630},
                      {3.2866, -2.4647, 0.5074},
                      {2.2737, -1.6447, 0.4162}}},
    [BRG_NS_AOL] = {"aol",
                    CYCLE,
                    4,
                    1.0,
                    {{4.0098, -7.0585, 2.4635},
                     {3.4585, -5.5479, 2.5959},
                     {2.7573, -3.2939, 1.4254},
                     {2.7215, -3.0494, 1.3169}}},
    [BRG_NS_DEEPSEEKV4] = {"deepseekv4",
                           REPEAT_LAST,
                           10,
                           1.0,
                           {{3.4445, -4.7750, 2.0315},
                            {3.4445, -4.7750, 2.0315},
                            {3.4445, -4.7750, 2.0315},
                            {3.4445, -4.7750, 2.0315},
                            {3.4445, -4.7750, 2.0315},
                            {3.4445, -4.7750, 2.0315},
                            {3.4445, -4.7750, 2.0315},
                            {3.4445, -4.7750, 2.0315},
                            {2.0, -1.5, 0.5},
                            {2.0, -1.5, 0.5}}},
    [BRG_NS_CUBIC5] = {"cubic5",
                       EXACT,
                       5,
                       1.0,
                       {{3.3656576, -3.3420992, 0.0},
                        {2.5744352, -1.4957376, 0.0},
                        {2.5368962, -1.4312570, 0.0},
                        {2.4418906, -1.2764040, 0.0},
                        {2.2230472, -0.9630650, 0.0}}},
};

static brg_status check_custom(const double (*custom)[3], int num_custom)
{
    if (!custom || num_custom < 1 || num_custom > BRG_NS_MAX_STEPS)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT,
                        "custom Newton-Schulz coefficients: %d tuples given, expected 1 to %d",
                        custom ? num_custom : 0, BRG_NS_MAX_STEPS);
    for (int i = 0; i < num_custom; i++)
        for (int j = 0; j < 3; j++)
            if (!isfinite(custom[i][j]))
                return brg_fail(BRG_ERR_INVALID_ARGUMENT,
                                "custom Newton-Schulz coefficients: tuple %d holds %g", i,
                                custom[i][j]);
    return BRG_OK;
}

/* Largest |derivative| of ax + bx^3 + cx^5 on [0, 1], where the singular values of a normalised
 * matrix lie: at an end, or where the second derivative 6bx + 20cx^3 is zero. */
static double largest_slope(const double *tuple)
{
    double a = tuple[0], b = tuple[1], c = tuple[2];
    double largest = fmax(fabs(a), fabs(a + 3 * b + 5 * c));
    double square = c != 0 ? -3 * b / (10 * c) : -1; /* of the inner extremum */
    if (square > 0 && square < 1)
        largest = fmax(largest, fabs(a + 3 * b * square + 5 * c * square * square));
    return largest;
}

brg_status brg_ns_schedule_make(brg_ns_coefficients set, int num_steps, const double (*custom)[3],
                                int num_custom, brg_ns_schedule *schedule)
{
    if ((unsigned)set > BRG_NS_CUSTOM)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT, "unknown Newton-Schulz coefficient set %d",
                        (int)set);
    if (num_steps < 0 || num_steps > BRG_NS_MAX_STEPS)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT,
                        "%d Newton-Schulz steps asked for, expected 1 to %d, or 0 for the default",
                        num_steps, BRG_NS_MAX_STEPS);
    if (set == BRG_NS_CUSTOM) {
        brg_status status = check_custom(custom, num_custom);
        if (status != BRG_OK)
            return status;
    }
    const coefficient_set *table = set == BRG_NS_CUSTOM ? NULL : &sets[set];
    const double(*tuples)[3] = table ? table->tuples : custom;
    int num_tuples = table ? table->num_tuples : num_custom;
    iteration_mode mode = table ? table->mode : CYCLE;
    double safety = table ? table->safety : 1.0;

    if (num_steps == 0)
        num_steps = set == BRG_NS_DEEPSEEKV4 || set == BRG_NS_CUSTOM ? num_tuples : 5;
    if (mode == EXACT && num_steps != num_tuples)
        return brg_fail(BRG_ERR_INVALID_ARGUMENT,
                        "Newton-Schulz set %s takes exactly %d steps, %d asked for", table->name,
                        num_tuples, num_steps);
    memset(schedule, 0, sizeof *schedule);
    schedule->num_steps = num_steps;
    for (int i = 0; i < num_steps; i++) {
        int from = mode == CYCLE || i < num_tuples ? i % num_tuples : num_tuples - 1;
        schedule->tuples[i][0] = tuples[from][0] / safety;
        schedule->tuples[i][1] = tuples[from][1] / pow(safety, 3);
        schedule->tuples[i][2] = tuples[from][2] / pow(safety, 5);
    }
    schedule->steep = largest_slope(schedule->tuples[0]) > BRG_NS_STEEP;
    return BRG_OK;
}
