/* xml.c - expat, reduced to paths and texts. */
#include "storage/http/xml.h"

#include "proto/base/report.h"

#include <expat.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH_MAX 8
#define TEXT_MAX 8192u /* of one element; more is cut, and no name of S3 is so long */

struct reader {
    XML_Parser parser;
    int (*found)(void *user, const char *path, const char *text);
    void *user;
    int depth, error;
    char path[XML_PATH_BYTES];
    size_t lengths[DEPTH_MAX + 1]; /* of the path before the element of that depth */
    bool has_children[DEPTH_MAX + 1];
    char text[TEXT_MAX + 1];
    size_t text_bytes;
};

static void stop(struct reader *reader, int error)
{
    if (reader->error == 0)
        reader->error = error;
    XML_StopParser(reader->parser, XML_FALSE);
}

static void stop_reading(struct reader *reader, const char *why)
{
    stop(reader, report_error(ERR_CORRUPT, NULL, "the server's answer %s", why));
}

static void XMLCALL begin_element(void *user, const char *name, const char **attributes)
{
    struct reader *reader = user;
    size_t length = strlen(reader->path);
    (void)attributes;
    if (reader->depth == DEPTH_MAX || length + strlen(name) + 2 > sizeof reader->path) {
        stop_reading(reader, "has too many nested elements");
        return;
    }
    reader->has_children[reader->depth] = true;
    reader->lengths[reader->depth++] = length;
    reader->has_children[reader->depth] = false;
    snprintf(reader->path + length, sizeof reader->path - length, "%s%s", length > 0 ? "/" : "",
             name);
    reader->text_bytes = 0;
}

static void XMLCALL end_element(void *user, const char *name)
{
    struct reader *reader = user;
    (void)name;
    reader->text[reader->text_bytes] = '\0';
    bool is_leaf = !reader->has_children[reader->depth];
    int error = reader->found(reader->user, reader->path, is_leaf ? reader->text : NULL);
    if (error != 0)
        stop(reader, error);
    reader->path[reader->lengths[--reader->depth]] = '\0';
    reader->text_bytes = 0;
}

static void XMLCALL append_text(void *user, const char *text, int bytes)
{
    struct reader *reader = user;
    size_t room = TEXT_MAX - reader->text_bytes;
    size_t now = (size_t)bytes < room ? (size_t)bytes : room;
    memcpy(reader->text + reader->text_bytes, text, now);
    reader->text_bytes += now;
}

static void XMLCALL refuse_type(void *user, const char *name, const char *system,
                                const char *public, int has_internal)
{
    (void)name, (void)system, (void)public, (void)has_internal;
    stop_reading(user, "declares a document type");
}

int xml_read(const char *text, size_t bytes,
             int (*found)(void *user, const char *path, const char *text), void *user)
{
    struct reader *reader = calloc(1, sizeof *reader);
    if (reader != NULL)
        reader->parser = XML_ParserCreate(NULL);
    if (reader == NULL || reader->parser == NULL) {
        free(reader);
        return report_error(ERR_MEMORY, NULL, "no memory to read the answer of a server");
    }
    reader->found = found;
    reader->user = user;
    XML_SetUserData(reader->parser, reader);
    XML_SetElementHandler(reader->parser, begin_element, end_element);
    XML_SetCharacterDataHandler(reader->parser, append_text);
    XML_SetStartDoctypeDeclHandler(reader->parser, refuse_type);
    bool is_fine = XML_Parse(reader->parser, text, (int)bytes, XML_TRUE) == XML_STATUS_OK;
    int error = reader->error;
    if (!is_fine && error == 0)
        error = XML_GetErrorCode(reader->parser) == XML_ERROR_NO_MEMORY
                    ? report_error(ERR_MEMORY, NULL, "no memory to read the answer of a server")
                    : report_error(ERR_CORRUPT, NULL, "the server's answer is not XML: %s",
                                   XML_ErrorString(XML_GetErrorCode(reader->parser)));
    XML_ParserFree(reader->parser);
    explicit_bzero(reader, sizeof *reader); /* the response of a token service holds a secret */
    free(reader);
    return error;
}
