// SPDX-License-Identifier: Apache-2.0
// The sample trainer's model against a float64 reference: loss, every parameter's gradient, and
// that equal inputs give equal bits.
#include <cstring>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "tests/seed.h"
#include "tests/train/reference.h"

extern "C" {
#include "tools/train/ops.h"
}

namespace
{

// A model with its parameters, gradients and a random batch.
struct Fixture {
    model *m;
    std::vector<std::vector<float>> value, grad;
    std::vector<uint8_t> tokens;
    model_batch batch;

    explicit Fixture(const model_config &config, uint64_t salt = 1) : m(model_create(&config))
    {
        for (int i = 0; i < m->num_params; i++) {
            int64_t count = brg_count(m->params[i]);
            value.emplace_back(count);
            grad.emplace_back(count);
        }
        for (int i = 0; i < m->num_params; i++)
            model_bind(m, i, value[(size_t)i].data(), grad[(size_t)i].data());
        model_init(m, 7);
        auto rng = test_rng(salt);
        for (int i = 0; i < config.max_batch * (config.seq_len + 1); i++)
            tokens.push_back((uint8_t)(rng() % (unsigned)config.vocab));
        batch = {config.max_batch, tokens.data()};
    }
    Fixture(const Fixture &) = delete;
    ~Fixture()
    {
        model_destroy(m);
    }

    static int64_t brg_count(const brg_param &param)
    {
        return param.shape[0] * (param.num_dims == 2 ? param.shape[1] : 1);
    }

    // Away from the symmetric start, where gains are 1, biases 0 and many gradients nearly 0.
    void scatter(uint64_t salt)
    {
        auto rng = test_rng(salt);
        std::normal_distribution<float> normal(0.0f, 0.3f);
        for (auto &tensor : value)
            for (float &v : tensor)
                v += normal(rng);
    }

    Params params() const
    {
        Params p;
        for (auto &tensor : value)
            p.emplace_back(tensor.begin(), tensor.end());
        return p;
    }

    double backward(const model_batch &part, float scale)
    {
        model_embed_forward(m, &part);
        for (int layer = 0; layer < m->config.layers; layer++)
            model_block_forward(m, &part, layer);
        double loss = model_head_pass(m, &part, scale);
        for (int layer = m->config.layers - 1; layer >= 0; layer--)
            model_block_backward(m, &part, layer);
        model_embed_backward(m, &part);
        return loss;
    }
};

const model_config kSmall = {11, 6, 12, 3, 2, 3, false};
const model_config kSmallTied = {11, 6, 12, 3, 2, 3, true};
const model_config kOneHead = {5, 19, 20, 1, 1, 2, false}; // longer than one vector of 16

// (L(p + h d) - L(p - h d)) / 2h in float64, along the direction d within one tensor.
double slope(const Fixture &f, const Params &p, size_t tensor, const Vec &direction, double scale)
{
    const double h = 1e-5;
    Params up = p, down = p;
    for (size_t j = 0; j < direction.size(); j++) {
        up[tensor][j] += h * direction[j];
        down[tensor][j] -= h * direction[j];
    }
    return (ref_loss(f.m, up, f.batch) - ref_loss(f.m, down, f.batch)) / (2 * h) * scale;
}

// Of every tensor some elements one by one, and random sign patterns over all of it, in which every
// element counts. The difference quotient has an error of about 1e-9; the float32 gradient is off
// by a few units of 6e-8 per operation along a chain of some hundred, relative to the tensor's
// largest gradient; along a pattern such errors add up like a random walk.
void check_gradients(const model_config &config)
{
    Fixture f(config);
    f.scatter(2);
    auto rng = test_rng(4);
    const double scale = 1.0 / (config.max_batch * config.seq_len);
    double loss = f.backward(f.batch, (float)scale);
    const Params p = f.params();
    EXPECT_NEAR(loss, ref_loss(f.m, p, f.batch), 2e-5 * loss);
    for (size_t i = 0; i < p.size(); i++) {
        const size_t count = p[i].size();
        float largest = 0;
        for (float g : f.grad[i])
            largest = std::max(largest, std::fabs(g));
        EXPECT_GT(largest, 1e-6) << f.m->params[i].name << " has no gradient to check";
        for (int sample = 0; sample < 8 * BRIGADE_TEST_STRESS; sample++) {
            const size_t j = rng() % count;
            Vec unit(count, 0.0);
            unit[j] = 1;
            EXPECT_NEAR(f.grad[i][j], slope(f, p, i, unit, scale), 3e-5 * largest + 1e-8)
                << f.m->params[i].name << "[" << j << "]";
        }
        for (int sample = 0; sample < 3 * BRIGADE_TEST_STRESS; sample++) {
            Vec signs(count);
            double along = 0;
            for (size_t j = 0; j < count; j++) {
                signs[j] = rng() % 2 ? 1 : -1;
                along += signs[j] * (double)f.grad[i][j];
            }
            EXPECT_NEAR(along, slope(f, p, i, signs, scale),
                        (3e-5 * largest + 1e-8) * std::sqrt((double)count))
                << f.m->params[i].name << " along a pattern";
        }
    }
}

TEST(Model, GradientsMatchCentralDifferences)
{
    check_gradients(kSmall);
}

TEST(Model, GradientsMatchCentralDifferencesWithTiedHead)
{
    check_gradients(kSmallTied);
}

TEST(Model, GradientsMatchCentralDifferencesWithOneLongHead)
{
    check_gradients(kOneHead);
}

TEST(Model, ZeroHeadGivesLogOfVocabulary)
{
    Fixture f(kSmall);
    for (float &v : f.value[(size_t)model_head(f.m)])
        v = 0.0f;
    const double tokens = kSmall.max_batch * kSmall.seq_len;
    EXPECT_NEAR(model_loss(f.m, &f.batch) / tokens, std::log(11.0), 1e-6);
}

TEST(Model, InitialLossIsNearLogOfVocabulary)
{
    const model_config config = {80, 32, 64, 4, 3, 4, false};
    Fixture f(config);
    double loss = model_loss(f.m, &f.batch) / (config.max_batch * config.seq_len);
    EXPECT_NEAR(loss, std::log(80.0), 0.1);
}

TEST(Model, LossOnlyPassLeavesGradientsAlone)
{
    Fixture f(kSmall);
    model_loss(f.m, &f.batch);
    for (auto &tensor : f.grad)
        for (float g : tensor)
            ASSERT_EQ(g, 0.0f);
}

TEST(Model, SameInputsGiveSameBits)
{
    Fixture a(kSmallTied), b(kSmallTied);
    double loss_a = a.backward(a.batch, 0.01f), loss_b = b.backward(b.batch, 0.01f);
    EXPECT_EQ(loss_a, loss_b);
    for (size_t i = 0; i < a.grad.size(); i++)
        EXPECT_EQ(memcmp(a.grad[i].data(), b.grad[i].data(), a.grad[i].size() * sizeof(float)), 0)
            << a.m->params[i].name;
}

TEST(Model, GradientsAddUpOverPartialBatches)
{
    Fixture whole(kSmall), parts(kSmall);
    double loss = whole.backward(whole.batch, 0.05f), sum = 0;
    for (int i = 0; i < kSmall.max_batch; i++) {
        model_batch one = {1, parts.tokens.data() + i * (kSmall.seq_len + 1)};
        sum += parts.backward(one, 0.05f);
    }
    EXPECT_NEAR(sum, loss, 1e-5 * loss);
    for (size_t i = 0; i < whole.grad.size(); i++) {
        float largest = 0;
        for (float g : whole.grad[i])
            largest = std::max(largest, std::fabs(g));
        for (size_t j = 0; j < whole.grad[i].size(); j++)
            ASSERT_NEAR(parts.grad[i][j], whole.grad[i][j], 1e-5f * largest + 1e-8f)
                << whole.m->params[i].name;
    }
}

TEST(Model, FutureTokensDoNotChangeThePast)
{
    Fixture f(kSmall);
    f.scatter(3);
    f.batch.count = 1;
    model_loss(f.m, &f.batch);
    std::vector<float> before(f.m->logits, f.m->logits + kSmall.seq_len * kSmall.vocab);
    const int changed = kSmall.seq_len - 2;
    f.tokens[(size_t)changed] = (uint8_t)((f.tokens[(size_t)changed] + 1) % kSmall.vocab);
    model_loss(f.m, &f.batch);
    for (int t = 0; t < kSmall.seq_len; t++) {
        bool same = memcmp(&before[(size_t)(t * kSmall.vocab)], f.m->logits + t * kSmall.vocab,
                           (size_t)kSmall.vocab * sizeof(float)) == 0;
        EXPECT_EQ(same, t < changed) << "position " << t;
    }
}

TEST(Model, ParametersAreDescribedInForwardOrder)
{
    Fixture f(kSmall), tied(kSmallTied);
    EXPECT_EQ(f.m->num_params, 2 + 2 * MODEL_BLOCK_PARAMS + 3);
    EXPECT_EQ(tied.m->num_params, f.m->num_params - 1);
    EXPECT_STREQ(f.m->params[0].name, "embed.token.weight");
    EXPECT_STREQ(f.m->params[model_block_param(1, QKV_WEIGHT)].name, "blocks.1.attn.qkv.weight");
    EXPECT_STREQ(f.m->params[model_head(f.m)].name, "head.weight");
    EXPECT_EQ(model_head(f.m), f.m->num_params - 1);
    EXPECT_EQ(model_head(tied.m), 0);
    std::set<std::string> names;
    for (int i = 0; i < f.m->num_params; i++) {
        EXPECT_TRUE(names.insert(f.m->params[i].name).second) << f.m->params[i].name;
        bool edge = i < 2 || i == model_head(f.m);
        EXPECT_EQ(f.m->params[i].flags, edge ? (uint32_t)BRG_PARAM_EMBEDDING_OR_OUTPUT : 0u);
    }
    EXPECT_TRUE(tied.m->params[0].flags & BRG_PARAM_SHARED_EMBEDDING);
}

TEST(Model, InitialValuesDependOnSeedOnly)
{
    Fixture a(kSmall), b(kSmall);
    EXPECT_EQ(a.value, b.value);
    model_init(b.m, 8);
    EXPECT_NE(a.value, b.value);
    for (float gain : a.value[(size_t)model_final_norm(a.m)])
        EXPECT_EQ(gain, 1.0f);
}

TEST(Ops, GeluMatchesReferenceOverItsWholeRange)
{
    for (double x = -30.0; x <= 30.0; x += 0.0173) {
        float in = (float)x, out;
        ops_gelu(&out, &in, 1);
        ASSERT_NEAR(out, ref_gelu((double)in), 5e-7 * std::max(1.0, std::fabs(x))) << x;
    }
}

TEST(Ops, SoftmaxOfExtremeScores)
{
    std::vector<float> row = {1e4f, -1e4f, 1e4f, 0.0f, 5.0f};
    ops_softmax(row.data(), 4, 5, 1.0f);
    EXPECT_FLOAT_EQ(row[0], 0.5f);
    EXPECT_FLOAT_EQ(row[2], 0.5f);
    EXPECT_NEAR(row[1] + row[3], 0.0f, 1e-25f);
    EXPECT_EQ(row[4], 0.0f);
}

TEST(Ops, NanStaysNan)
{
    float in = NAN, out;
    ops_gelu(&out, &in, 1);
    EXPECT_TRUE(std::isnan(out));
}

} // namespace
