/* Takes a corpus through a fuzz target once, without libFuzzer: every file as it is, cut short, and with a byte changed.
 * The same course each time, and cheap enough for every test run. Arguments: folders. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define VARIANTS 24u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* In memory of its exact size, so that a sanitizer sees the first byte too many. */
static void run(const uint8_t *data, size_t bytes)
{
    uint8_t *copy = calloc(1, bytes > 0 ? bytes : 1);
    if (copy == NULL)
        abort();
    memcpy(copy, data, bytes);
    (void)LLVMFuzzerTestOneInput(copy, bytes);
    free(copy);
}

static void run_variants(uint8_t *data, size_t bytes)
{
    run(data, bytes);
    size_t step = bytes / VARIANTS + 1;
    for (size_t at = 0; at < bytes; at += step) {
        uint8_t before = data[at];
        run(data, at);
        data[at] = (uint8_t)(before ^ 0x81);
        run(data, bytes);
        data[at] = before;
    }
}

static void run_file(const char *path)
{
    FILE *file = fopen(path, "re");
    long bytes = -1;
    if (file != NULL && fseek(file, 0, SEEK_END) == 0)
        bytes = ftell(file);
    uint8_t *data = malloc(bytes > 0 ? (size_t)bytes : 1);
    if (bytes < 0 || data == NULL || fseek(file, 0, SEEK_SET) != 0 ||
        fread(data, 1, (size_t)bytes, file) != (size_t)bytes) {
        (void)fprintf(stderr, "cannot read %s\n", path);
        exit(1);
    }
    (void)fclose(file);
    (void)printf("%s\n", path); /* the last one is the culprit */
    (void)fflush(stdout);
    run_variants(data, (size_t)bytes);
    free(data);
}

static unsigned run_folder(const char *folder)
{
    struct dirent **entries;
    unsigned files = 0;
    int count = scandir(folder, &entries, NULL, alphasort);
    for (int i = 0; i < count; i++) {
        char path[512];
        if (entries[i]->d_name[0] != '.' &&
            snprintf(path, sizeof(path), "%s/%s", folder, entries[i]->d_name) < (int)sizeof(path)) {
            run_file(path);
            files++;
        }
        free(entries[i]);
    }
    if (count >= 0)
        free(entries);
    return files;
}

int main(int argc, char **argv)
{
    unsigned files = 0;
    run((const uint8_t *)"", 0);
    for (int i = 1; i < argc; i++)
        files += run_folder(argv[i]);
    (void)printf("%u files\n", files);
    return files > 0 ? 0 : 1;
}
