/* Stands in for libllama: hands everything on to the real library beside it, and fails as FAKE_FAULT says.
   FAKE_WHEN: import (as it is loaded), extra (in passes over several tokens, with weights in the extra buffers), always
   (in all passes over several tokens). STRUCT_BYTES and EXTRA_AT describe llama_model_params. */
#include <llama.h>
#include <dlfcn.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int extra_buffers;

static int is(const char * name, const char * value) {
    const char * given = getenv(name);
    return given && strcmp(given, value) == 0;
}

static void * real(const char * name) { return dlsym(RTLD_NEXT, name); }

static void fail(void) {
    if (is("FAKE_FAULT", "SIGSEGV")) raise(SIGSEGV);
    if (is("FAKE_FAULT", "SIGILL")) raise(SIGILL);
    if (is("FAKE_FAULT", "SIGABRT")) abort();
    if (is("FAKE_FAULT", "hang")) sleep(60);
}

__attribute__((constructor)) static void on_load(void) {
    if (is("FAKE_WHEN", "import")) fail();
}

struct llama_model * llama_model_load_from_file(const char * path, struct llama_model_params params) {
    struct llama_model * (*load)(const char *, struct llama_model_params) = real("llama_model_load_from_file");
    extra_buffers = params.use_extra_bufts;
    return load(path, params);
}

int32_t llama_decode(struct llama_context * context, struct llama_batch batch) {
    int32_t (*decode)(struct llama_context *, struct llama_batch) = real("llama_decode");
    float * (*logits)(struct llama_context *) = real("llama_get_logits");
    int fails = batch.n_tokens > 1 && (is("FAKE_WHEN", "always") || (is("FAKE_WHEN", "extra") && extra_buffers));
    if (fails) fail();
    int32_t code = decode(context, batch);
    if (fails && is("FAKE_FAULT", "NaN")) logits(context)[0] = NAN;
    return code;
}
