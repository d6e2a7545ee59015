/* SPDX-License-Identifier: Apache-2.0 */
/* Enough of protobuf to read back what was written by hand: messages as lists of fields. */
#ifndef BRIGADE_TESTS_TRACE_PROTOBUF_H
#define BRIGADE_TESTS_TRACE_PROTOBUF_H

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

struct ProtoField {
    uint32_t number;
    int wire; /* 0 varint, 1 fixed64, 2 bytes */
    uint64_t value;
    std::string bytes;
};

class ProtoMessage
{
  public:
    explicit ProtoMessage(const std::string &data)
    {
        for (size_t at = 0; at < data.size();) {
            uint64_t key = varint(data, at);
            ProtoField field{(uint32_t)(key >> 3), (int)(key & 7), 0, ""};
            if (field.wire == 0) {
                field.value = varint(data, at);
            } else if (field.wire == 1) {
                need(data, at, 8);
                for (int i = 0; i < 8; i++)
                    field.value |= (uint64_t)(unsigned char)data[at + i] << 8 * i;
                at += 8;
            } else if (field.wire == 2) {
                uint64_t length = varint(data, at);
                need(data, at, length);
                field.bytes = data.substr(at, length);
                at += length;
            } else {
                throw std::runtime_error("unknown wire type");
            }
            fields.push_back(field);
        }
    }
    const ProtoField *find(uint32_t number) const
    {
        for (auto &field : fields)
            if (field.number == number)
                return &field;
        return nullptr;
    }
    bool has(uint32_t number) const
    {
        return find(number) != nullptr;
    }
    uint64_t number(uint32_t field) const
    {
        return find(field) ? find(field)->value : 0;
    }
    std::string text(uint32_t field) const
    {
        return find(field) ? find(field)->bytes : "";
    }
    ProtoMessage message(uint32_t field) const
    {
        return ProtoMessage(text(field));
    }

    std::vector<ProtoField> fields;

  private:
    static void need(const std::string &data, size_t at, uint64_t bytes)
    {
        if (bytes > data.size() - at)
            throw std::runtime_error("cut off");
    }
    static uint64_t varint(const std::string &data, size_t &at)
    {
        uint64_t value = 0;
        for (int shift = 0; shift < 70; shift += 7) {
            need(data, at, 1);
            unsigned char byte = (unsigned char)data[at++];
            value |= (uint64_t)(byte & 0x7f) << shift;
            if (!(byte & 0x80))
                return value;
        }
        throw std::runtime_error("varint without an end");
    }
};

#endif
