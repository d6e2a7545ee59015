/* SPDX-License-Identifier: Apache-2.0 */
/* A library that is none of those looked for. */
int fake_nothing(void);
int fake_nothing(void)
{
    return 0;
}
