// SPDX-License-Identifier: Apache-2.0
#include "tests/layout/golden.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <openssl/evp.h>
#include <sstream>
#include <stdexcept>

namespace golden
{

static const char *const data_dir = BRIGADE_TEST_DATA "/golden";

static brg_dtype dtype_of(const std::string &name)
{
    for (int i = 0; brg_dtype_bytes((brg_dtype)i); i++)
        if (name == brg_dtype_str((brg_dtype)i))
            return (brg_dtype)i;
    throw std::runtime_error("golden data: unknown dtype " + name);
}

static void set_shape(brg_param &param, const std::string &shape)
{
    if (shape == "-")
        return;
    std::istringstream in(shape);
    for (std::string part; std::getline(in, part, 'x');)
        param.shape[param.num_dims++] = std::stoll(part);
}

void Params::add(const std::string &name, const std::string &dtype, const std::string &shape,
                 const std::string &flags)
{
    brg_param param = {};
    param.dtype = dtype_of(dtype);
    set_shape(param, shape);
    static const std::map<char, uint32_t> bits = {{'s', BRG_PARAM_SHARED_EMBEDDING},
                                                  {'e', BRG_PARAM_EXPERT_PARALLEL},
                                                  {'o', BRG_PARAM_EMBEDDING_OR_OUTPUT},
                                                  {'n', BRG_PARAM_NO_MUON},
                                                  {'q', BRG_PARAM_QUANTIZED}};
    size_t multiplier = flags.find('g');
    if (multiplier != std::string::npos)
        param.ns_row_multiplier = std::stoll(flags.substr(multiplier + 1));
    for (char c : flags.substr(0, multiplier))
        if (c != 'L' && c != '-')
            param.flags |= bits.at(c);
    names.push_back(name);
    list.push_back(param);
    layerwise.push_back(flags.find('L') != std::string::npos);
}

const std::vector<brg_param> &Params::get()
{
    for (size_t i = 0; i < list.size(); i++)
        list[i].name = names[i].c_str();
    return list;
}

static std::vector<int> list_of(const std::string &text)
{
    std::vector<int> out;
    std::istringstream in(text);
    for (std::string part; std::getline(in, part, ',');) {
        size_t dash = part.find('-');
        int first = std::stoi(part);
        int last = dash == std::string::npos ? first : std::stoi(part.substr(dash + 1));
        for (int i = first; i <= last; i++)
            out.push_back(i);
    }
    return out;
}

static int64_t number_or(const std::string &text, const char *none, int64_t value)
{
    return text == none ? value : std::stoll(text);
}

static Record record_of(std::istringstream &in)
{
    Record record;
    std::string ns_max, ns_total, numel_max;
    in >> record.key >> ns_max >> ns_total >> numel_max >> record.sha256;
    record.ns_max = number_or(ns_max, "-", -1);
    record.ns_total = number_or(ns_total, "-", -1);
    record.numel_max = number_or(numel_max, "-", -1);
    int64_t position = 0;
    for (std::string word; in >> word;) {
        size_t slash = word.find('/'), star = word.find('*');
        int64_t length = std::stoll(word);
        int64_t unpadded = slash == std::string::npos ? length : std::stoll(word.substr(slash + 1));
        int64_t times = star == std::string::npos ? 1 : std::stoll(word.substr(star + 1));
        for (; times > 0; times--) {
            record.buckets.push_back({position, position + length, unpadded});
            position += length;
        }
    }
    return record;
}

static void add_cases(Model &model, std::istringstream &in, const std::vector<std::string> &dps)
{
    std::string algorithm, size, pad;
    in >> algorithm >> size >> pad;
    size_t column = 0;
    for (std::string ids; in >> ids; column++) {
        Case c;
        size_t at = size.find('@');
        c.algorithm = algorithm;
        c.bucket_size = number_or(size, "none", -1);
        c.num_buckets = at == std::string::npos ? 0 : std::stoll(size.substr(at + 1));
        c.pad = pad == "1";
        if (pad != "-") {
            const std::string &dp = dps.at(column);
            c.dp = std::stoi(dp);
            c.expert_dp = std::stoi(dp.substr(dp.find('/') + 1));
        }
        if (ids != ".")
            c.records = list_of(ids);
        model.cases.push_back(c);
    }
}

static std::ifstream open_file(const std::string &name)
{
    std::ifstream file(std::string(data_dir) + "/" + name + ".txt");
    if (!file)
        throw std::runtime_error("golden data: cannot open " + name);
    return file;
}

std::vector<std::string> model_names()
{
    std::vector<std::string> names;
    for (const auto &entry : std::filesystem::directory_iterator(data_dir))
        if (entry.path().extension() == ".txt" && entry.path().stem() != "corner_cases")
            names.push_back(entry.path().stem());
    std::sort(names.begin(), names.end());
    return names;
}

Model load_model(const std::string &name)
{
    Model model;
    std::vector<std::string> dps;
    std::ifstream file = open_file(name);
    for (std::string line; std::getline(file, line);) {
        std::istringstream in(line);
        std::string kind, a, b, c, d;
        in >> kind;
        if (kind == "model") {
            in >> model.name;
        } else if (kind == "p") {
            in >> a >> b >> c >> d;
            model.params.add(a, b, c, d);
        } else if (kind == "plain" || kind == "layerwise") {
            in >> a >> b;
            (kind == "plain" ? model.plain : model.layerwise).push_back({a, list_of(b)});
        } else if (kind == "r") {
            model.records.push_back(record_of(in));
        } else if (kind == "dps") {
            while (in >> a)
                dps.push_back(a);
        } else if (kind == "c") {
            add_cases(model, in, dps);
        } else if (kind != "#") {
            throw std::runtime_error("golden data: " + name + ": " + line);
        }
    }
    return model;
}

static Routing routing_of(std::istringstream &in)
{
    std::string shape, muon;
    bool embedding, shared, layerwise;
    in >> shape >> muon >> embedding >> shared >> layerwise;
    brg_param param = {};
    param.name = "p";
    set_shape(param, shape);
    param.flags = (muon == "false" ? BRG_PARAM_NO_MUON : 0) |
                  (embedding ? BRG_PARAM_EMBEDDING_OR_OUTPUT : 0) |
                  (shared ? BRG_PARAM_SHARED_EMBEDDING : 0);
    return {param, layerwise};
}

Corners load_corners()
{
    Corners all;
    std::ifstream file = open_file("corner_cases");
    for (std::string line; std::getline(file, line);) {
        std::istringstream in(line);
        std::string kind, a, b;
        in >> kind;
        if (kind == "divisors") {
            std::vector<int64_t> row(4);
            for (int64_t &value : row)
                in >> value;
            all.divisors.push_back(row);
        } else if (kind == "routing") {
            all.routing.push_back(routing_of(in));
        } else if (kind == "corner") {
            Corner corner;
            in >> corner.tag >> corner.dp >> a >> corner.pad;
            corner.bucket_size = number_or(a, "none", -1);
            all.corners.push_back(corner);
        } else if (kind == "p") {
            int count;
            Params &params = all.corners.back().params;
            in >> a >> b >> count;
            for (; count > 0; count--)
                params.add("p" + std::to_string(params.list.size()), "bf16", a, b);
        } else if (kind == "r") {
            Record record = record_of(in);
            all.corners.back().results[record.key] = record;
        } else if (kind != "#") {
            throw std::runtime_error("golden data: " + line);
        }
    }
    return all;
}

std::string sha256(const std::string &text)
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned bytes = 0;
    if (!EVP_Digest(text.data(), text.size(), digest, &bytes, EVP_sha256(), nullptr))
        throw std::runtime_error("SHA-256 is not available");
    std::string hex;
    static const char digits[] = "0123456789abcdef";
    for (unsigned i = 0; i < bytes; i++) {
        hex += digits[digest[i] >> 4];
        hex += digits[digest[i] & 15];
    }
    return hex;
}

} // namespace golden
