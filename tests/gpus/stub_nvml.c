/* A libnvidia-ml.so.1 that answers from a file, for the real nvidia-ml-py to load.
 *
 * NVML_STUB names the file, read anew at every call; a line each:
 *   driver 570.1            init CODE              hang FUNCTION
 *   card I UUID TOTAL_MIB USED_MIB UTIL TEMP MILLIWATT NAME...
 *   process I PID MIB compute|graphics             with "-" for MIB, its memory is not known
 *   host_pids OFFSET        pids are those of another namespace: so much larger
 *   reserved I MIB          what the driver keeps for itself, of TOTAL_MIB
 *   lingers I MIB UNTIL     memory of an ended process, used until that time (seconds since 1970)
 *   lost I                  ecc I COUNT            recovery I ACTION        xid I CODE
 *   mig I UUID TOTAL_MIB USED_MIB                  remap_failed I           mode_refused I
 *   nvlink I J              these two cards are joined
 * An Xid is told to those who listened before it happened, each once; who listens to which card is
 * written to NVML_STUB.listeners, a line "I" each.
 * Compute modes that are set go into NVML_STUB.mode, a line "I MODE" each; the last one counts.
 * Compiled with -DOLD it lacks what drivers before the 470 series lacked.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef unsigned long long u64;
typedef struct { int card; int slice; } device;          /* slice -1: the whole card */
typedef struct { u64 total, free, used; } memory;
typedef struct { unsigned version; u64 total, reserved, free, used; } memory_v2;
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
typedef struct { int card; u64 mib; } amount;
static int read_lingering(const char *rest, void *context) {
    amount *a = context;
    int card;
    u64 mib;
    double until;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (sscanf(rest, "%d %llu %lf", &card, &mib, &until) != 3 || card != a->card) return 0;
    if (now.tv_sec + now.tv_nsec / 1e9 < until) a->mib += mib;
    return 1;
}
static memory_v2 memory_of(device *d) {  /* as of today's call: used does not include reserved */
    slice s;
    state whole = of(d);
    amount late = {d->card, 0};
    u64 reserved = d->slice < 0 ? (u64)value_of("reserved", d->card) : 0;
    each("lingers", read_lingering, &late);
    whole.used += late.mib;
    if (d->slice >= 0) { slice_of(d, &s); whole.total = s.total; whole.used = s.used; }
    return (memory_v2){2, whole.total << 20, reserved << 20,
                       (whole.total - reserved - whole.used) << 20, whole.used << 20};
}
int nvmlDeviceGetMemoryInfo(device *d, memory *into) {
    memory_v2 m;
    ASK(d);
    m = memory_of(d);
    *into = (memory){m.total, m.free, m.used + m.reserved};
    return OK;
}
#ifndef OLD
int nvmlDeviceGetMemoryInfo_v2(device *d, memory_v2 *into) { ASK(d); *into = memory_of(d); return OK; }
static int joined(const char *rest, void *context) {
    int *pair = context, a, b;
    if (sscanf(rest, "%d %d", &a, &b) != 2) return 0;
    return (a == pair[0] && b == pair[1]) || (a == pair[1] && b == pair[0]);
}
int nvmlDeviceGetP2PStatus(device *a, device *b, int index, int *status) {
    int pair[2] = {a->card, b->card};
    ASK(a);
    *status = index == 2 && each("nvlink", joined, pair) ? 0 : 5;  /* 2: NVLink; 5: not supported */
    return OK;
}
#endif
int nvmlDeviceGetUtilizationRates(device *d, rates *into) { ASK(d); *into = (rates){of(d).util, 0}; return OK; }
int nvmlDeviceGetTemperature(device *d, int sensor, unsigned *into) { ASK(d); *into = of(d).temp; return OK; }
int nvmlDeviceGetPowerUsage(device *d, unsigned *into) { ASK(d); *into = of(d).power; return OK; }

typedef struct { int card, room, count; const char *kind; process *into; } listing;
static int read_process(const char *rest, void *context) {
    listing *l = context;
    int card, offset = 0;
    unsigned pid;
    char mib[24], kind[16];
    if (sscanf(rest, "%d %u %23s %15s", &card, &pid, mib, kind) != 4) return 0;
    if (card != l->card || strcmp(kind, l->kind)) return 0;
    each("host_pids", init_code, &offset);
    if (l->count < l->room)
        l->into[l->count] = (process){pid + offset, *mib == '-' ? -1ULL : strtoull(mib, NULL, 10) << 20};
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

static int told[64];  /* each event is told once, and what was there before is not */
int nvmlEventSetCreate(void **set) { *set = cards; return OK; }
int nvmlDeviceRegisterEvents(device *d, u64 types, void *set) {
    char path[512];
    FILE *file;
    told[d->card] = value_of("xid", d->card);
    snprintf(path, sizeof path, "%s.listeners", getenv("NVML_STUB"));  /* there, or no card is */
    if ((file = fopen(path, "a"))) { fprintf(file, "%d\n", d->card); fclose(file); }
    return OK;
}
int nvmlEventSetWait_v2(void *set, event *into, unsigned timeout_ms) {
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
