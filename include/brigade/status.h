/* SPDX-License-Identifier: Apache-2.0 */
/** @file
 * Status codes and error messages.
 *
 * Every call that can fail returns a brg_status: 0 is success, a positive value means "not finished
 * yet", a negative value is an error. The text of the last error on the calling thread is
 * brg_last_error(); it names the thing that failed (file, parameter, bucket, rank, value) and what
 * was expected.
 */
#ifndef BRIGADE_STATUS_H
#define BRIGADE_STATUS_H

#if defined(__GNUC__)
#define BRG_API __attribute__((visibility("default")))
#else
#define BRG_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef enum brg_status {
    BRG_OK = 0,                    /**< done */
    BRG_IN_PROGRESS = 1,           /**< started, not finished; ask again */
    BRG_ERR_INVALID_ARGUMENT = -1, /**< an argument is out of range or inconsistent */
    BRG_ERR_NO_MEMORY = -2,        /**< host or device memory is exhausted */
    BRG_ERR_IO = -3,               /**< a file or system call failed */
    BRG_ERR_FORMAT = -4,       /**< input is not what it should be: bad JSON, foreign or cut file */
    BRG_ERR_NO_DATA = -5,      /**< input is well formed but holds nothing to work on */
    BRG_ERR_MISMATCH = -6,     /**< ranks disagree about a layout, option or collective */
    BRG_ERR_PEER_LOST = -7,    /**< another rank has died or left */
    BRG_ERR_TIMEOUT = -8,      /**< another rank did not arrive in time */
    BRG_ERR_DEVICE = -9,       /**< the device runtime or communication library failed */
    BRG_ERR_STATE = -10,       /**< the call came at the wrong time */
    BRG_ERR_NON_FINITE = -11,  /**< a NaN, Inf or too large gradient was found */
    BRG_ERR_UNSUPPORTED = -12, /**< valid, but not available in this build or device */
    BRG_ERR_READINESS = -13,   /**< gradients became ready in another pattern than learned */
} brg_status;

/** @return a static, human-readable name of @p status; never NULL. */
BRG_API const char *brg_status_str(brg_status status);

/** @return the message of the last failed call on the calling thread, "" if none has failed. Valid
 * until the next failing call on the same thread. */
BRG_API const char *brg_last_error(void);

/** Version of the library in use, as opposed to the headers: "1.0.0". */
BRG_API const char *brg_version(void);

#ifdef __cplusplus
}
#endif
#endif
