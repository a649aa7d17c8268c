// toml.cpp - visits the leaves of a TOML document with toml++ (contract in toml.h).
//
// The library's exceptions are switched off: a syntax error is a value with a source position. What
// is left (allocation failure) is caught here, so no exception reaches C.
// Its assertions are switched off, too: some check the document ("[.a]"), and the code after them
// reports errors.
#define TOML_EXCEPTIONS 0
#define TOML_ASSERT(condition) static_cast<void>(0)
#include <toml++/toml.h>

#include "proto/base/toml.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <new>
#include <sstream>
#include <string>
#include <vector>

namespace
{

struct leaf {
    std::string key, value;
    uint32_t line;
};

bool fail_at(toml_fault *fault, uint32_t line, const std::string &reason)
{
    fault->line = line;
    snprintf(fault->reason, sizeof(fault->reason), "%s", reason.c_str());
    return false;
}

// The shortest text that reads back as the same number; "1" for 1.0 suits integers and reals alike.
std::string format_real(double value)
{
    char text[64];
    auto end = std::to_chars(text, text + sizeof(text), value).ptr;
    return std::string(text, end);
}

bool format_scalar(std::string &out, const toml::node &node)
{
    if (auto text = node.as_string())
        out = text->get();
    else if (auto integer = node.as_integer())
        out = std::to_string(integer->get());
    else if (auto real = node.as_floating_point())
        out = format_real(real->get());
    else if (auto flag = node.as_boolean())
        out = flag->get() ? "true" : "false";
    else if (node.is_date() || node.is_time() || node.is_date_time()) {
        std::ostringstream stream;
        node.visit([&](auto &&value) {
            if constexpr (toml::is_chronological<decltype(value)>)
                stream << value.get();
        });
        out = stream.str();
    } else
        return false;
    return true;
}

bool format_list(std::string &out, const toml::array &list, bool is_inner = false)
{
    bool first = true;
    for (auto &&element : list) {
        std::string text;
        auto inner = is_inner ? nullptr : element.as_array();
        if (inner ? !format_list(text, *inner, true) : !format_scalar(text, element))
            return false;
        out += (first ? "" : inner ? ";" : ",") + text;
        first = false;
    }
    return true;
}

bool collect(std::vector<leaf> &out, const toml::table &table, const std::string &prefix,
             toml_fault *fault)
{
    for (auto &&[key, node] : table) {
        std::string name = prefix + std::string(key.str());
        uint32_t line = key.source().begin.line;
        std::string value;
        if (auto inner = node.as_table()) {
            if (!collect(out, *inner, name + ".", fault))
                return false;
            continue;
        }
        auto list = node.as_array();
        if (list ? !format_list(value, *list) : !format_scalar(value, node))
            return fail_at(fault, line, "'" + name + "' is not a value or a list of values");
        out.push_back({name, value, line});
    }
    return true;
}

} // namespace

extern "C" enum toml_result toml_visit(struct toml_fault *out_fault, int *out_visit,
                                       const char *text, size_t bytes,
                                       int (*visit)(void *user, const struct toml_leaf *leaf),
                                       void *user)
try {
    *out_visit = 0;
    toml::parse_result document = toml::parse(std::string_view(text, bytes));
    if (!document) {
        const toml::parse_error &error = document.error();
        fail_at(out_fault, error.source().begin.line, std::string(error.description()));
        return TOML_BAD;
    }
    std::vector<leaf> leaves;
    if (!collect(leaves, document.table(), "", out_fault))
        return TOML_BAD;
    std::stable_sort(leaves.begin(), leaves.end(),
                     [](const leaf &a, const leaf &b) { return a.line < b.line; });
    for (const leaf &each : leaves) {
        const toml_leaf view = {each.key.c_str(), each.value.c_str(), each.line};
        *out_visit = visit(user, &view);
        if (*out_visit != 0)
            break;
    }
    return TOML_OK;
} catch (const std::bad_alloc &) {
    return TOML_MEMORY;
} catch (const std::exception &error) {
    fail_at(out_fault, 0, error.what());
    return TOML_BAD;
}
