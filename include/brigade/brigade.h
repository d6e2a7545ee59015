/* SPDX-License-Identifier: Apache-2.0 */
/** @file
 * Everything: include this one.
 */
#ifndef BRIGADE_BRIGADE_H
#define BRIGADE_BRIGADE_H

#include "brigade/context.h"   // IWYU pragma: export
#include "brigade/dtype.h"     // IWYU pragma: export
#include "brigade/graph.h"     // IWYU pragma: export
#include "brigade/layout.h"    // IWYU pragma: export
#include "brigade/optimizer.h" // IWYU pragma: export
#include "brigade/param.h"     // IWYU pragma: export
#include "brigade/scheduler.h" // IWYU pragma: export
#include "brigade/status.h"    // IWYU pragma: export

#endif
