// SPDX-License-Identifier: Apache-2.0
#include "tests/layout/reference.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

namespace reference
{

using Wide = __int128;

namespace
{

struct Item {
    int param;
    bool shared;
    int64_t n;
    Wide cost;
};

int64_t up(int64_t x, int64_t d)
{
    return (x + d - 1) / d * d;
}

int64_t al(int64_t x)
{
    return up(x, 64);
}

int64_t elements(const brg_param &p)
{
    int64_t n = 1;
    for (int i = 0; i < p.num_dims; i++)
        n *= p.shape[i];
    return n;
}

Wide work(const brg_param &p)
{
    if (p.num_dims != 2)
        return elements(p);
    Wide m = (Wide)p.shape[0] * (p.ns_row_multiplier ? p.ns_row_multiplier : 1), k = p.shape[1];
    return std::max(m, k) * std::min(m, k) * std::min(m, k);
}

// One buffer. `size` is the bucket size, -1 for none.
struct Planner {
    int64_t W, size;
    bool pad;
    std::vector<Item> items;
    Buffer &out;
    int64_t D, S;

    Planner(int shards, int64_t bucket_size, bool pad_busbw, std::vector<Item> list, Buffer &buffer)
        : W(shards), size(bucket_size), pad(pad_busbw), items(std::move(list)), out(buffer)
    {
        D = std::lcm(W, (int64_t)128);
        if (pad)
            D = std::lcm(D, (int64_t)65536);
        S = std::lcm((int64_t)64, D / W);
    }

    void place(const Item &item, int64_t start, int shard)
    {
        out.places.push_back({item.param, (int)out.buckets.size(), shard, start, start + item.n});
    }

    void flat(bool aligned)
    {
        int64_t pos = 0, start = 0;
        bool open = false;
        for (const Item &item : items) {
            if (aligned)
                pos = al(pos);
            place(item, pos, -1);
            pos += item.n;
            open = true;
            if (size >= 0 && pos - start >= size) {
                out.buckets.push_back({start, pos, pos - start});
                start = pos;
                open = false;
            }
        }
        if (open)
            out.buckets.push_back({start, pos, pos - start});
    }

    void elementwise()
    {
        int64_t pos = 0, start = 0;
        bool open = false;
        auto close = [&] {
            out.buckets.push_back({start, up(pos, D), pos - start});
            pos = start = up(pos, D);
            open = false;
        };
        for (const Item &item : items) {
            pos = al(pos);
            if (item.shared && open)
                close();
            place(item, pos, -1);
            pos += item.n;
            open = true;
            if (item.shared || (size >= 0 && pos - start >= size))
                close();
        }
        if (open)
            close();
    }

    std::vector<Wide> loads;

    void pack(std::vector<Item> chunk, bool balanced)
    {
        std::vector<int64_t> fill(W, 0);
        int64_t T = 0;
        for (const Item &item : chunk)
            T += item.n;
        std::stable_sort(chunk.begin(), chunk.end(), [&](const Item &a, const Item &b) {
            return balanced ? a.cost > b.cost : a.n > b.n;
        });
        std::vector<std::pair<int, int64_t>> spots;
        for (const Item &item : chunk) {
            int best = -1;
            if (balanced)
                for (int s = 0; s < W; s++)
                    if ((Wide)10 * W * (al(fill[s]) + item.n) <= (Wide)13 * T &&
                        (best < 0 || loads[s] < loads[best]))
                        best = s;
            if (best < 0)
                best = (int)(std::min_element(fill.begin(), fill.end()) - fill.begin());
            spots.push_back({best, al(fill[best])});
            fill[best] = al(fill[best]) + item.n;
            loads[best] += item.cost;
        }
        int64_t start = out.buckets.empty() ? 0 : out.buckets.back().end;
        int64_t Z = up(*std::max_element(fill.begin(), fill.end()), S);
        for (size_t i = 0; i < chunk.size(); i++)
            place(chunk[i], start + spots[i].first * Z + spots[i].second, spots[i].first);
        out.buckets.push_back({start, start + W * Z, T});
    }

    // Whether item fits the estimate: the chunk so far, placed in backprop order.
    bool fits(const std::vector<Item> &chunk, const Item &item)
    {
        std::vector<int64_t> load(W, 0);
        for (const Item &c : chunk) {
            auto least = std::min_element(load.begin(), load.end());
            *least = al(*least) + c.n;
        }
        int64_t min = *std::min_element(load.begin(), load.end());
        int64_t max = *std::max_element(load.begin(), load.end());
        return al(min) + item.n <= up(max, S);
    }

    void layerwise(brg_packing packing)
    {
        bool balanced = packing == BRG_PACKING_NS_BALANCED;
        std::vector<Item> chunk;
        loads.assign(W, 0);
        auto full = [&] {
            Wide T = 0, M = 0;
            for (const Item &c : chunk) {
                T += c.n;
                M = std::max<Wide>(M, c.n);
            }
            return size >= 0 && T >= std::max<Wide>(size, 9 * W * M / 10);
        };
        auto close = [&] {
            if (!chunk.empty())
                pack(chunk, balanced);
            chunk.clear();
        };
        for (const Item &item : items) {
            if (item.shared) {
                close();
                int64_t start = out.buckets.empty() ? 0 : out.buckets.back().end;
                place(item, start, 0);
                out.buckets.push_back({start, start + W * up(item.n, S), item.n});
            } else if (packing == BRG_PACKING_LPT) {
                chunk.push_back(item);
                if (full())
                    close();
            } else {
                if (!chunk.empty() && full() && !fits(chunk, item))
                    close();
                chunk.push_back(item);
            }
        }
        close();
    }
};

std::string name_of(const brg_param &p, const brg_layout_options &o)
{
    bool lw = o.algorithm == BRG_LAYERWISE && p.num_dims == 2 && !(p.flags & BRG_PARAM_NO_MUON) &&
              !(p.flags & BRG_PARAM_EMBEDDING_OR_OUTPUT);
    std::string grad = brg_dtype_str(o.grad_dtype_is_param_dtype ? p.dtype : o.grad_dtype);
    return std::string(p.flags & BRG_PARAM_QUANTIZED ? "u8" : brg_dtype_str(p.dtype)) + "/" + grad +
           (p.flags & BRG_PARAM_EXPERT_PARALLEL ? "/expert" : "/dense") + (lw ? "/lw" : "/std");
}

int64_t threshold(const std::vector<brg_param> &params, const brg_layout_options &o)
{
    if (o.num_buckets > 0) {
        int64_t total = 0;
        for (const brg_param &p : params)
            total += elements(p);
        return total / o.num_buckets;
    }
    if (o.bucket_size == BRG_BUCKET_SIZE_DEFAULT)
        return std::max<int64_t>(40000000, 1000000ll * std::max(1, o.data_parallel_size));
    return o.bucket_size == BRG_BUCKET_SIZE_NONE       ? -1
           : o.bucket_size == BRG_BUCKET_SIZE_SMALLEST ? 0
                                                       : o.bucket_size;
}

int shards_of(const std::string &name, const brg_layout_options &o)
{
    int dense = std::max(1, o.data_parallel_size);
    if (name.find("/expert/") == std::string::npos || o.expert_data_parallel_size == 0)
        return dense;
    return o.expert_data_parallel_size;
}

double balance(const Buffer &buffer, const std::vector<brg_param> &params)
{
    std::map<int, Wide> loads;
    Wide total = 0, max = 0;
    for (const Place &place : buffer.places) {
        if (place.shard < 0)
            return 1;
        total += work(params[place.param]);
        max = std::max(max, loads[place.shard] += work(params[place.param]));
    }
    return total > 0 ? (double)max * buffer.shards / (double)total : 1;
}

} // namespace

std::vector<Buffer> plan(const std::vector<brg_param> &params, const brg_layout_options &options)
{
    std::vector<Buffer> buffers;
    std::map<std::string, std::vector<Item>> items;
    for (int i = 0; i < (int)params.size(); i++) {
        std::string name = name_of(params[i], options);
        if (!items.count(name))
            buffers.push_back({name, shards_of(name, options), {}, {}, 1});
        items[name].insert(items[name].begin(),
                           {i, (params[i].flags & BRG_PARAM_SHARED_EMBEDDING) != 0,
                            elements(params[i]), work(params[i])});
    }
    for (Buffer &buffer : buffers) {
        Planner planner(buffer.shards, threshold(params, options),
                        options.pad_for_high_bus_bandwidth != 0, items[buffer.name], buffer);
        bool lw = buffer.name.substr(buffer.name.size() - 3) == "/lw";
        if (options.algorithm == BRG_FLAT)
            planner.flat(options.pad_param_starts != 0);
        else if (lw)
            planner.layerwise(options.packing == BRG_PACKING_DEFAULT ? BRG_PACKING_NS_BALANCED
                                                                     : options.packing);
        else
            planner.elementwise();
        std::stable_sort(buffer.places.begin(), buffer.places.end(),
                         [](const Place &a, const Place &b) { return a.start < b.start; });
        buffer.ns_ratio = balance(buffer, params);
    }
    return buffers;
}

namespace
{

std::string buffer_fault(const brg_layout_buffer &buffer, const std::vector<brg_param> &params,
                         const brg_layout_options &options, std::multiset<int> &seen)
{
    bool flat = options.algorithm == BRG_FLAT;
    std::vector<std::pair<int, int>> order; // (backprop position, bucket)
    std::vector<bool> used(buffer.num_buckets, false);
    std::vector<std::pair<int64_t, int64_t>> spans;
    for (int i = 0; i < buffer.num_params; i++) {
        const brg_layout_param &p = buffer.params[i];
        seen.insert(p.param);
        if (p.end - p.start != elements(params[p.param]))
            return "size";
        if ((!flat || options.pad_param_starts) && p.start % 64)
            return "start alignment";
        const brg_layout_bucket &bucket = buffer.buckets[p.bucket];
        if (p.start < bucket.start || p.end > bucket.end)
            return "outside of its bucket";
        if (buffer.key.layerwise && p.end > p.start) {
            int64_t Z = (bucket.end - bucket.start) / buffer.num_shards;
            if ((p.start - bucket.start) / Z != p.shard ||
                (p.end - 1 - bucket.start) / Z != p.shard)
                return "not in its shard";
        }
        used[p.bucket] = true;
        order.push_back({-p.param, p.bucket});
        if (p.end > p.start)
            spans.push_back({p.start, p.end});
    }
    std::sort(spans.begin(), spans.end());
    for (size_t i = 1; i < spans.size(); i++)
        if (spans[i].first < spans[i - 1].second)
            return "overlap";
    std::sort(order.begin(), order.end());
    for (size_t i = 1; i < order.size(); i++)
        if (order[i].second < order[i - 1].second)
            return "bucket order";
    int64_t end = 0;
    for (int i = 0; i < buffer.num_buckets; i++) {
        if (buffer.buckets[i].start != end)
            return "hole between buckets";
        end = buffer.buckets[i].end;
        if (!flat && end % buffer.num_shards)
            return "bucket end not divisible";
        if (!used[i])
            return "bucket without parameters";
    }
    return end == buffer.numel ? "" : "numel";
}

} // namespace

std::string fault(const brg_layout *layout, const std::vector<brg_param> &params,
                  const brg_layout_options &options)
{
    std::multiset<int> seen;
    for (int b = 0; b < brg_layout_num_buffers(layout); b++) {
        std::string text = buffer_fault(*brg_layout_get_buffer(layout, b), params, options, seen);
        if (!text.empty())
            return text;
    }
    for (int i = 0; i < (int)params.size(); i++)
        if (seen.count(i) != 1)
            return "a parameter is not in exactly one place";
    return "";
}

static int64_t pick(std::mt19937_64 &rng, std::initializer_list<int64_t> values)
{
    return values.begin()[rng() % values.size()];
}

Model random_model(std::mt19937_64 &rng)
{
    Model model;
    size_t count = pick(rng, {0, 1, 2, 7, 20, 60, 120}) * (rng() % 4 ? 1 : 0) + rng() % 30;
    bool small = rng() % 3 == 0, equal = rng() % 4 == 0, mixed = rng() % 2;
    int64_t limit = small ? 5 : pick(rng, {40, 300, 2000});
    for (size_t i = 0; i < count; i++) {
        brg_param p = {};
        p.num_dims = (int)pick(rng, {2, 2, 2, 2, 2, 1, 1, 3, 0});
        for (int d = 0; d < p.num_dims; d++)
            p.shape[d] = 1 + (int64_t)(rng() % (equal ? 2 : limit)) * (equal ? 63 : 1);
        if (p.num_dims && rng() % 15 == 0)
            p.shape[rng() % p.num_dims] = 0;
        p.dtype = mixed && rng() % 4 == 0 ? BRG_FLOAT32 : BRG_BFLOAT16;
        if (mixed && rng() % 3 == 0)
            p.flags |= BRG_PARAM_EXPERT_PARALLEL;
        if (rng() % 12 == 0)
            p.flags |= BRG_PARAM_SHARED_EMBEDDING;
        if (rng() % 10 == 0)
            p.flags |= BRG_PARAM_EMBEDDING_OR_OUTPUT;
        if (rng() % 10 == 0)
            p.flags |= BRG_PARAM_NO_MUON;
        if (mixed && rng() % 8 == 0)
            p.flags |= BRG_PARAM_QUANTIZED;
        p.ns_row_multiplier = pick(rng, {0, 0, 0, 1, 2, 8});
        model.names.push_back((rng() % 9 ? "w" : "\xc3\xa9\"\\") + std::to_string(i));
        model.params.push_back(p);
    }
    for (size_t i = 0; i < count; i++)
        model.params[i].name = model.names[i].c_str();
    return model;
}

brg_layout_options random_options(std::mt19937_64 &rng)
{
    brg_layout_options o = {};
    o.algorithm = (brg_algorithm)pick(
        rng, {BRG_LAYERWISE, BRG_LAYERWISE, BRG_LAYERWISE, BRG_ELEMENTWISE, BRG_FLAT});
    o.packing = (brg_packing)(rng() % 4);
    o.data_parallel_size = (int)pick(rng, {0, 1, 2, 3, 4, 5, 7, 8, 12, 13, 16, 33, 64, 100, 257});
    o.expert_data_parallel_size = (int)pick(rng, {0, 1, 2, 3, 8, 24});
    if (rng() % 3 == 0)
        o.num_buckets = 1 + (int64_t)(rng() % 40);
    else
        o.bucket_size = pick(rng, {BRG_BUCKET_SIZE_DEFAULT, BRG_BUCKET_SIZE_NONE,
                                   BRG_BUCKET_SIZE_SMALLEST, 1, 100, 5000, 60000, 1000000});
    o.pad_for_high_bus_bandwidth = rng() % 4 == 0;
    o.pad_param_starts = rng() % 2;
    o.grad_dtype = rng() % 4 ? BRG_FLOAT32 : BRG_BFLOAT16;
    o.grad_dtype_is_param_dtype = rng() % 4 == 0;
    return o;
}

std::string describe(const brg_layout_options &o, const std::vector<brg_param> &params)
{
    std::string text = "algorithm " + std::to_string(o.algorithm) + " packing " +
                       std::to_string(o.packing) + " dp " + std::to_string(o.data_parallel_size) +
                       "/" + std::to_string(o.expert_data_parallel_size) + " bucket size " +
                       std::to_string(o.bucket_size) + " buckets " + std::to_string(o.num_buckets) +
                       " pad " + std::to_string(o.pad_for_high_bus_bandwidth) +
                       std::to_string(o.pad_param_starts) + "\n";
    for (const brg_param &p : params) {
        text += std::string(p.name) + " flags " + std::to_string(p.flags) + " shape";
        for (int d = 0; d < p.num_dims; d++)
            text += " " + std::to_string(p.shape[d]);
        text += "\n";
    }
    return text;
}

} // namespace reference
