/* SPDX-License-Identifier: Apache-2.0 */
/* brigade report --bucket-map: names from a plan for buckets that were recognised. */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/brigade/report.h"

typedef struct map_entry {
    uint64_t elements;
    char name[64];
    bool taken;
} map_entry;

typedef struct map {
    map_entry *entries;
    size_t count;
} map;

static const char *const expected = "a file that brigade plan --json has written";

static brg_status map_add(map *m, const char *path, const char *key, size_t index,
                          const json_t *bucket)
{
    const json_t *start = json_object_get(bucket, "start"), *end = json_object_get(bucket, "end");
    if (!json_is_integer(start) || !json_is_integer(end) ||
        json_integer_value(end) < json_integer_value(start))
        return brg_fail(
            BRG_ERR_FORMAT,
            "--bucket-map: '%s': bucket %zu of buffer %s has no start and end; expected %s", path,
            index, key, expected);
    map_entry *grown = reallocarray(m->entries, m->count + 1, sizeof *grown);
    if (!grown)
        return brg_fail(BRG_ERR_NO_MEMORY, "%s: no memory for its buckets", path);
    m->entries = grown;
    map_entry *entry = &grown[m->count++];
    *entry =
        (map_entry){.elements = (uint64_t)(json_integer_value(end) - json_integer_value(start))};
    snprintf(entry->name, sizeof entry->name, "%.40s#%zu", key, index);
    return BRG_OK;
}

static brg_status map_read(map *m, const char *path)
{
    json_error_t error;
    FILE *file = fopen(path, "re");
    brg_status status = BRG_OK;
    size_t i, k;
    json_t *buffer, *bucket;
    if (!file)
        return brg_fail(BRG_ERR_IO, "--bucket-map: cannot open '%s': %s; expected %s", path,
                        strerror(errno), expected);
    json_t *root = json_loadf(file, 0, &error);
    fclose(file);
    if (!root)
        return brg_fail(BRG_ERR_FORMAT, "--bucket-map: '%s': line %d: %s; expected %s", path,
                        error.line, error.text, expected);
    json_t *buffers = json_object_get(root, "buffers");
    if (!json_is_array(buffers)) {
        status = brg_fail(BRG_ERR_FORMAT, "--bucket-map: '%s' has no list of buffers; expected %s",
                          path, expected);
        goto out;
    }
    json_array_foreach(buffers, i, buffer)
    {
        const char *key = json_string_value(json_object_get(buffer, "key"));
        json_t *buckets = json_object_get(buffer, "buckets");
        if (!key || !json_is_array(buckets)) {
            status =
                brg_fail(BRG_ERR_FORMAT,
                         "--bucket-map: '%s': buffer %zu has no key or no buckets; expected %s",
                         path, i, expected);
            goto out;
        }
        json_array_foreach(buckets, k, bucket) BRG_TRY(map_add(m, path, key, k, bucket), out);
    }
out:
    json_decref(root);
    return status;
}

static void map_name(map *m, brg_rank_report *data, size_t *unnamed)
{
    *unnamed = 0;
    for (size_t k = 0; k < m->count; k++)
        m->entries[k].taken = false;
    for (size_t i = 0; i < data->nbuckets; i++) {
        brg_meta_bucket *meta = &data->buckets[i].meta;
        size_t k = 0;
        while (k < m->count && (m->entries[k].taken || m->entries[k].elements != meta->numel))
            k++;
        if (k == m->count) {
            ++*unnamed;
            continue;
        }
        m->entries[k].taken = true;
        snprintf(meta->name, sizeof meta->name, "%s", m->entries[k].name);
    }
}

brg_status report_map(report *r, const char *path)
{
    map m = {0};
    brg_status status = map_read(&m, path);
    for (size_t i = 0; status == BRG_OK && i < r->nranks; i++) {
        brg_rank_report *data = &r->ranks[i].data;
        size_t unnamed;
        if (!data->recognition)
            continue;
        map_name(&m, data, &unnamed);
        if (unnamed && &r->ranks[i] == r->shown)
            report_warn(r, "%zu of %zu buckets are not in %s: no bucket there has their size",
                        unnamed, data->nbuckets, path);
    }
    if (status == BRG_OK && !r->shown->data.recognition)
        report_warn(r, "--bucket-map is not used: the trace has its own names");
    free(m.entries);
    return status;
}
