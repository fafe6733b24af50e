/* A libnvidia-ml.so.1 that answers from a file, for the real nvidia-ml-py to load.
 *
 * NVML_STUB names the file, read anew at every call; a line each:
 *   driver 570.1            init CODE              hang FUNCTION
 *   card I UUID TOTAL_MIB USED_MIB UTIL TEMP MILLIWATT NAME...
 *   process I PID MIB compute|graphics
 *   lost I                  ecc I COUNT            recovery I ACTION        xid I CODE
 *   mig I UUID TOTAL_MIB USED_MIB                  remap_failed I           mode_refused I
 * Compute modes that are set go into NVML_STUB.mode, a line "I MODE" each; the last one counts.
 * Compiled with -DOLD it lacks what drivers before the 470 series lacked.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef unsigned long long u64;
typedef struct { int card; int slice; } device;          /* slice -1: the whole card */
typedef struct { u64 total, free, used; } memory;
typedef struct { unsigned gpu, memory; } rates;
#ifdef OLD
typedef struct { unsigned pid; u64 used; } process;
#else
typedef struct { unsigned pid; u64 used; unsigned gpu_instance, compute_instance; } process;
#endif
typedef struct { unsigned field, scope; long long at, latency; int type, result; u64 value; } field;
typedef struct { device *who; u64 type, data; unsigned gpu_instance, compute_instance; } event;

enum { OK, UNINITIALIZED, INVALID, NOT_SUPPORTED, NO_PERMISSION, ALREADY, NOT_FOUND, TOO_SMALL,
       TIMEOUT = 10, LOST = 15 };

static device cards[64], slices[64];

/* Calls `see` for each line that starts with `word`, with what follows it. */
static int each(const char *word, int (*see)(const char *rest, void *), void *context) {
    const char *path = getenv("NVML_STUB");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[512];
    int found = 0;
    while (file && fgets(line, sizeof line, file)) {
        size_t length = strlen(word);
        line[strcspn(line, "\n")] = 0;
        if (!strncmp(line, word, length) && line[length] == ' ')
            found += see(line + length + 1, context);
    }
    if (file) fclose(file);
    return found;
}

static int matches(const char *rest, void *name) { return !strcmp(rest, name); }
static int is_card(const char *rest, void *index) { return atoi(rest) == *(int *)index; }
static int copy(const char *rest, void *into) { strcpy(into, rest); return 1; }
static int second(const char *rest, void *pair) {
    int *p = pair, card, value;
    if (sscanf(rest, "%d %d", &card, &value) == 2 && card == p[0]) { p[1] = value; return 1; }
    return 0;
}
static int value_of(const char *word, int card) {
    int pair[2] = {card, 0};
    each(word, second, pair);
    return pair[1];
}
static int lost(int card) { return each("lost", is_card, &card); }

#define CALL(...) do { if (each("hang", matches, (void *)__func__)) for (;;) pause(); } while (0)
#define ASK(d) do { CALL(); if (lost((d)->card)) return LOST; } while (0)

typedef struct { int card; char uuid[96], name[96]; u64 total, used; int util, temp, power; } state;
static int read_card(const char *rest, void *context) {
    state *s = context, got = {0};
    int n = 0;
    sscanf(rest, "%d %95s %llu %llu %d %d %d %n", &got.card, got.uuid, &got.total, &got.used,
           &got.util, &got.temp, &got.power, &n);
    if (got.card != s->card) return 0;
    snprintf(got.name, sizeof got.name, "%s", rest + n);
    *s = got;
    return 1;
}
static state of(device *d) { state s = {.card = d->card}; each("card", read_card, &s); return s; }

typedef struct { int card, number, seen; char uuid[96]; u64 total, used; } slice;
static int read_slice(const char *rest, void *context) {
    slice *s = context, got = *s;
    sscanf(rest, "%d %95s %llu %llu", &got.card, got.uuid, &got.total, &got.used);
    if (got.card != s->card) return 0;
    if (s->seen++ == s->number) { got.seen = s->seen; *s = got; return 1; }
    return 0;
}
static int slice_of(device *d, slice *s) {
    *s = (slice){.card = d->card, .number = d->slice};
    return each("mig", read_slice, s);
}

static int init_code(const char *rest, void *code) { *(int *)code = atoi(rest); return 1; }
int nvmlInitWithFlags(unsigned flags) {
    int code = OK;
    CALL();
    each("init", init_code, &code);
    return code;
}
int nvmlShutdown(void) { return OK; }
int nvmlSystemGetDriverVersion(char *into, unsigned size) { CALL(); each("driver", copy, into); return OK; }
static int any(const char *rest, void *nothing) { return 1; }
int nvmlDeviceGetCount_v2(unsigned *count) { CALL(); *count = each("card", any, NULL); return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, device **into) {
    CALL();
    cards[index] = (device){index, -1};
    *into = &cards[index];
    return OK;
}
int nvmlDeviceGetIndex(device *d, unsigned *index) { *index = d->card; return OK; }
int nvmlDeviceGetUUID(device *d, char *into, unsigned size) {
    slice s;
    CALL();  /* a lost card still knows its uuid: the driver has it in memory */
    if (d->slice >= 0) { slice_of(d, &s); strcpy(into, s.uuid); return OK; }
    strcpy(into, of(d).uuid);
    return OK;
}
static int is_uuid(const char *rest, void *context) {
    state *s = context, got = {0};
    sscanf(rest, "%d %95s", &got.card, got.uuid);
    if (strcmp(got.uuid, s->uuid)) return 0;
    s->card = got.card;
    return 1;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, device **into) {
    state s = {0};
    CALL();
    snprintf(s.uuid, sizeof s.uuid, "%s", uuid);
    return each("card", is_uuid, &s) ? nvmlDeviceGetHandleByIndex_v2(s.card, into) : NOT_FOUND;
}
static FILE *modes(const char *how) {
    char path[512];
    snprintf(path, sizeof path, "%s.mode", getenv("NVML_STUB"));
    return fopen(path, how);
}
int nvmlDeviceGetComputeMode(device *d, unsigned *mode) {
    FILE *file = modes("r");
    int card;
    unsigned seen;
    ASK(d);
    *mode = 0;
    while (file && fscanf(file, "%d %u", &card, &seen) == 2) if (card == d->card) *mode = seen;
    if (file) fclose(file);
    return OK;
}
int nvmlDeviceSetComputeMode(device *d, unsigned mode) {
    FILE *file;
    ASK(d);
    if (each("mode_refused", is_card, &d->card)) return NO_PERMISSION;
    file = modes("a");
    fprintf(file, "%d %u\n", d->card, mode);
    fclose(file);
    return OK;
}
int nvmlDeviceGetName(device *d, char *into, unsigned size) { ASK(d); strcpy(into, of(d).name); return OK; }
int nvmlDeviceGetMemoryInfo(device *d, memory *into) {
    slice s;
    state whole;
    ASK(d);
    whole = of(d);
    if (d->slice >= 0) { slice_of(d, &s); whole.total = s.total; whole.used = s.used; }
    *into = (memory){whole.total << 20, (whole.total - whole.used) << 20, whole.used << 20};
    return OK;
}
int nvmlDeviceGetUtilizationRates(device *d, rates *into) { ASK(d); *into = (rates){of(d).util, 0}; return OK; }
int nvmlDeviceGetTemperature(device *d, int sensor, unsigned *into) { ASK(d); *into = of(d).temp; return OK; }
int nvmlDeviceGetPowerUsage(device *d, unsigned *into) { ASK(d); *into = of(d).power; return OK; }

typedef struct { int card, room, count; const char *kind; process *into; } listing;
static int read_process(const char *rest, void *context) {
    listing *l = context;
    int card;
    unsigned pid;
    u64 mib;
    char kind[16];
    if (sscanf(rest, "%d %u %llu %15s", &card, &pid, &mib, kind) != 4) return 0;
    if (card != l->card || strcmp(kind, l->kind)) return 0;
    if (l->count < l->room) l->into[l->count] = (process){pid, mib << 20};
    l->count++;
    return 1;
}
static int list(device *d, const char *kind, unsigned *count, process *into) {
    listing l = {d->card, into ? (int)*count : 0, 0, kind, into};
    each("process", read_process, &l);
    *count = l.count;
    return l.count > l.room ? TOO_SMALL : OK;
}

#ifdef OLD
int nvmlDeviceGetComputeRunningProcesses(device *d, unsigned *n, process *p) { ASK(d); return list(d, "compute", n, p); }
#else
int nvmlDeviceGetComputeRunningProcesses_v3(device *d, unsigned *n, process *p) { ASK(d); return list(d, "compute", n, p); }
int nvmlDeviceGetGraphicsRunningProcesses_v3(device *d, unsigned *n, process *p) { ASK(d); return list(d, "graphics", n, p); }

int nvmlDeviceGetTotalEccErrors(device *d, int type, int counter, u64 *into) { ASK(d); *into = value_of("ecc", d->card); return OK; }
int nvmlDeviceGetRemappedRows(device *d, unsigned *a, unsigned *b, unsigned *pending, unsigned *failed) {
    ASK(d);
    *a = *b = *pending = 0;
    *failed = each("remap_failed", is_card, &d->card);
    return OK;
}
int nvmlDeviceGetFieldValues(device *d, int count, field *fields) {
    ASK(d);
    for (int i = 0; i < count; i++) { fields[i].result = OK; fields[i].value = value_of("recovery", d->card); }
    return OK;
}
int nvmlDeviceGetMigMode(device *d, unsigned *now, unsigned *pending) {
    ASK(d);
    *now = *pending = each("mig", is_card, &d->card) > 0;
    return OK;
}
int nvmlDeviceGetMaxMigDeviceCount(device *d, unsigned *count) { ASK(d); *count = 7; return OK; }
int nvmlDeviceGetMigDeviceHandleByIndex(device *d, unsigned number, device **into) {
    slice s;
    device part = {d->card, (int)number};
    ASK(d);
    if (!slice_of(&part, &s)) return NOT_FOUND;
    slices[d->card * 8 + number] = part;
    *into = &slices[d->card * 8 + number];
    return OK;
}

int nvmlEventSetCreate(void **set) { *set = cards; return OK; }
int nvmlDeviceRegisterEvents(device *d, u64 types, void *set) { return OK; }
int nvmlEventSetWait_v2(void *set, event *into, unsigned timeout_ms) {
    static int told[64];  /* each event is delivered once, and what was there before is not */
    for (int card = 0; card < 64; card++) {
        int code = value_of("xid", card);
        if (code && told[card] != code) {
            told[card] = code;
            cards[card] = (device){card, -1};
            *into = (event){.who = &cards[card], .type = 8, .data = code};
            return OK;
        }
    }
    return TIMEOUT;
}
#endif
