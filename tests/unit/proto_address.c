/* proto_address.c - the address of a ckptd, as users write it.
 *
 * Goal: unix:/PATH and HOST:PORT are parsed into the arguments of the system's calls, an IPv6
 * address without its brackets. Any other text is refused in a sentence that quotes it, with a hint
 * that gives the form. Method: texts by hand, at and around every limit of address.h. */
#include "proto/base/address.h"
#include "proto/base/report.h"
#include "tests/unit/suite.h"

#include <stdio.h>
#include <string.h>

#define FORMS "give unix:/PATH, or HOST:PORT"

static void expect_host(const char *text, const char *host, const char *port)
{
    struct address address;
    memset(&address, 0xa5, sizeof address);
    assert_int_equal(address_parse(&address, text), 0);
    assert_int_equal(address.kind, ADDRESS_TLS);
    assert_string_equal(address.host, host);
    assert_string_equal(address.port, port);
}

static void expect_refusal(const char *text, const char *sentence, const char *hint)
{
    struct address address;
    assert_int_equal(address_parse(&address, text), ERR_INVALID);
    assert_string_equal(report_message(), sentence);
    assert_string_equal(report_hint(), hint);
}

static void expect_no_address(const char *text)
{
    char sentence[512];
    snprintf(sentence, sizeof sentence, "'%s' is no address of a ckptd", text);
    expect_refusal(text, sentence, FORMS);
}

/* `count` letters after `before`, followed by `after`. */
static const char *with_letters(char *out, const char *before, size_t count, const char *after)
{
    size_t at = strlen(before);
    memcpy(out, before, at);
    memset(out + at, 'h', count);
    strcpy(out + at + count, after);
    return out;
}

TEST(test_address__a_socket_is_its_path)
{
    struct address address;
    char text[200];
    memset(&address, 0xa5, sizeof address);
    assert_int_equal(address_parse(&address, "unix:/run/a b:7/s"), 0);
    assert_int_equal(address.kind, ADDRESS_UNIX);
    assert_string_equal(address.path, "/run/a b:7/s");
    with_letters(text, "unix:/", sizeof address.path - 2, "");
    assert_int_equal(address_parse(&address, text), 0);
    assert_string_equal(address.path, text + strlen("unix:"));
}

TEST(test_address__a_path_that_is_relative_or_too_long_is_refused)
{
    char text[200], sentence[512];
    expect_refusal("unix:", "'unix:' names no socket", "give unix: and an absolute path");
    expect_refusal("unix:run/s", "'unix:run/s' names no socket", "give unix: and an absolute path");
    with_letters(text, "unix:/", sizeof((struct address *)0)->path - 1, "");
    snprintf(sentence, sizeof sentence,
             "the path of a socket has at most 107 bytes, and %s has 108", text);
    expect_refusal(text, sentence, "name a shorter path");
}

TEST(test_address__a_host_is_a_name_or_an_address)
{
    expect_host("node-7.example:7070", "node-7.example", "7070");
    expect_host("127.0.0.1:1", "127.0.0.1", "1");
    expect_host("h:65535", "h", "65535");
    expect_host("unix.example:80", "unix.example", "80");
}

TEST(test_address__an_address_of_ipv6_is_in_brackets)
{
    expect_host("[::1]:7070", "::1", "7070");
    expect_host("[fe80::1%eth0]:80", "fe80::1%eth0", "80");
    static const char *const bad[] = {"::1:7070", "[::1:7070", "::1]:7070", "[]:7070",
                                      "[:7070",   "[::1]",     "[::1]7070", "[::1] :7070"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        expect_no_address(bad[i]);
}

TEST(test_address__a_port_is_a_number_up_to_65535)
{
    static const char *const bad[] = {"h",        "h:",         "h:0",   "h:65536", "h:99999",
                                      "h:100000", "h:000001",   "h:-1",  "h:+1",    "h: 1",
                                      "h:1 ",     "h:http",     "h:1.5", "",        ":7070",
                                      "h/a:7070", "http://h:80"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        expect_no_address(bad[i]);
}

TEST(test_address__a_host_has_at_most_255_bytes)
{
    char text[400];
    with_letters(text, "", 255, ":1");
    struct address address;
    assert_int_equal(address_parse(&address, text), 0);
    assert_int_equal(strlen(address.host), 255);
    expect_no_address(with_letters(text, "", 256, ":1"));
    with_letters(text, "[", 255, "]:1");
    assert_int_equal(address_parse(&address, text), 0);
    expect_no_address(with_letters(text, "[", 256, "]:1"));
}

SUITE(NULL, NULL)
