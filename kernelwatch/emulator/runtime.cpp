// The runtime behind emulator.h: it runs a block's threads as fibers and one block after the other, and it finds faults
// and counts accesses.
//
// Each compiled kernel is linked with its own copy. With -fsanitize=thread, the compiler inserts a call of
// __tsan_read4(address) or a similar function before each access; these are defined here, and libtsan is not linked.
// A launch that accesses memory out of bounds ends before that access; other faults are recorded and it goes on.

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <sys/mman.h>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>
#include <vector_types.h>
#if !defined(__x86_64__)
#define EMULATOR_UCONTEXT  // about ten times slower
#endif
#if defined(EMULATOR_UCONTEXT)
#include <ucontext.h>
#endif

extern "C" void kernelwatch_call(void **arguments);  // calls the kernel; build.py appends it to the source

// --- the interface to Python ---------------------------------------------------------------------------------------

enum RegionKind : int32_t { GLOBAL, SHARED, CONSTANT, HIDDEN };  // HIDDEN: the compiler's own variables

struct Region {  // memory that the kernel may touch
    uint64_t low, high;
    int32_t kind, writable;
};

enum FaultKind : int32_t { OUT_OF_BOUNDS, INDEX, UNWRITTEN, RACE, DIVERGENT, DIVERGENT_WARP, NOT_WRITABLE, MISALIGNED };

struct Fault {
    int32_t kind, access, size, region;  // region: the nearest one, -1 for none
    uint64_t site, other_site;
    int32_t line, other_line, other_access, other_thread;
    int64_t index, extent;  // in elements of the array; if out of bounds, in bytes from the region's start
    uint32_t block[3];
    int32_t thread;
};

struct Tally {  // the accesses of one site to one kind of memory
    uint64_t site;
    int32_t region_kind, access;
    uint64_t requests, cost, ideal, bytes;  // cost: sectors of global, wavefronts of shared memory
    uint64_t unpaired;  // requests of a warp whose lanes came to the site unequally often
    uint64_t split;     // sectors of shared memory that copies of 16 bytes a lane fill, beyond those that they read
};

// RUN reports accesses out of bounds or not aligned, and writes to inputs; CHECK also unwritten reads, races and divergent barriers.
enum Mode : int32_t { RUN, CHECK, COUNT };

struct Launch {
    uint32_t grid[3], block[3];
    void **arguments;
    uint64_t shared_bytes;
    const Region *regions;  // kernelwatch_run appends one for dynamic shared memory
    int32_t region_count, mode;
    Fault *faults;
    int32_t fault_room, fault_count;
    Tally *tallies;
    int32_t tally_room, tally_count, stopped;
    uint64_t barriers;  // how often a block waited at one
};

namespace {

// --- threads as fibers ---------------------------------------------------------------------------------------------

constexpr size_t STACK = 256 << 10, PAGE = 4096, LINE = 64;
constexpr unsigned WARP = 32;

enum State { FRESH, READY, AT_BLOCK, AT_WARP, DONE };

struct Note {  // an access that a later one may race with
    uint32_t epoch = 0, warp_epoch = 0;
    int32_t thread = -1, access = 0;
    uint64_t site = 0;
};
struct Shadow {  // of a byte: its last write, its last read, and a read by another thread, preferably of another warp
    Note write, read, other_read;
};

struct Request {  // a warp's access: the nth one of its lanes at one site since the last barrier
    uint32_t lanes = 0, size = 0, copies = 0;  // copies: the lanes that copy 16 bytes from global to shared memory
    std::array<uint64_t, WARP> address, to;    // to: where they copy them
};

struct Thread {
#if !defined(EMULATOR_UCONTEXT)
    void *at;
#else
    ucontext_t at;
#endif
    char *stack;
    uint3 index;
    int linear;
    State state;
    int barrier, line;
    unsigned mask;
    uint64_t site;          // of the warp barrier at which it waits
    uint32_t warp_epoch;
    bool active;            // it has touched memory since its last barrier
    int64_t bad_index, bad_extent;
    int bad_line;           // the line of an index past its array, until the next access reports it; 0: none
    std::vector<uint32_t> seen;  // per site number: the thread's accesses since the last barrier
};

Launch *launch;
Thread *current;
std::vector<Thread> threads;
std::vector<char *> stacks, all_stacks;
uint3 block_at, block_size, grid_size;
std::vector<unsigned char> shared_memory;
unsigned char *shared_start;
bool stopped;
uint64_t own_stack;  // the running thread's
uint64_t slots[1024];

#if !defined(EMULATOR_UCONTEXT)
void *scheduler;
// Saves the registers that a call must preserve on the old stack, switches, and returns on the new stack.
extern "C" void kernelwatch_switch(void **from, void *to);
asm(R"(
    .text
    .type kernelwatch_switch, @function
kernelwatch_switch:
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp, (%rdi)
    mov %rsi, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    ret
    .size kernelwatch_switch, . - kernelwatch_switch
)");
void leave() { kernelwatch_switch(&current->at, scheduler); }
void enter(Thread &thread) { kernelwatch_switch(&scheduler, thread.at); }
void prepare(Thread &thread, void (*start)()) {
    void **top = reinterpret_cast<void **>((reinterpret_cast<uint64_t>(thread.stack) + STACK) & ~uint64_t(15));
    *--top = nullptr;  // the return address of `start`, which never returns
    *--top = reinterpret_cast<void *>(start);
    thread.at = top - 6;  // the six registers
}
#else
ucontext_t scheduler;
void leave() { swapcontext(&current->at, &scheduler); }
void enter(Thread &thread) { swapcontext(&scheduler, &thread.at); }
void prepare(Thread &thread, void (*start)()) {
    getcontext(&thread.at);
    thread.at.uc_stack.ss_sp = thread.stack;
    thread.at.uc_stack.ss_size = STACK;
    thread.at.uc_link = nullptr;
    makecontext(&thread.at, start, 0);
}
#endif

void flush_pending_index();

void run_thread() {
    kernelwatch_call(launch->arguments);
    flush_pending_index();
    current->state = DONE;
    leave();
    __builtin_unreachable();
}

void resume(Thread &thread) {
    current = &thread;
    if (thread.state == FRESH) {
        if (stacks.empty()) {
            void *fresh = mmap(nullptr, STACK + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (fresh == MAP_FAILED) {
                std::perror("no memory for a thread's stack");
                std::abort();
            }
            // The tops of the stacks are in different sets of the cache.
            stacks.push_back(static_cast<char *>(fresh) + all_stacks.size() * LINE % PAGE);
            all_stacks.push_back(stacks.back());
        }
        thread.stack = stacks.back();
        stacks.pop_back();
        prepare(thread, run_thread);
    }
    thread.state = READY;
    own_stack = reinterpret_cast<uint64_t>(thread.stack);
    enter(thread);
    if (thread.state == DONE && !stopped) {
        stacks.push_back(thread.stack);
        thread.stack = nullptr;
    }
}

// --- faults --------------------------------------------------------------------------------------------------------

std::vector<Region> regions;
std::vector<std::vector<Shadow>> shadows;
uint32_t epoch, block_epoch, warp_clock;
std::set<std::tuple<int, uint64_t, uint64_t>> known;  // each fault is reported once per site

Fault blank(FaultKind kind) {
    Fault fault{};
    fault.kind = kind;
    fault.region = fault.other_thread = -1;
    fault.thread = current->linear;
    fault.block[0] = block_at.x, fault.block[1] = block_at.y, fault.block[2] = block_at.z;
    return fault;
}

void tell(const Fault &fault) {
    if (launch->fault_count < launch->fault_room &&
        known.insert({fault.kind, fault.site + fault.line, fault.other_site + fault.other_line}).second)
        launch->faults[launch->fault_count++] = fault;
}

[[noreturn]] void stop() {
    stopped = true;
    leave();
    __builtin_unreachable();
}

// Reports an index past its array if no access of this thread has followed it.
void flush_pending_index() {
    if (!current->bad_line)
        return;
    Fault fault = blank(INDEX);
    fault.line = std::exchange(current->bad_line, 0);
    fault.index = current->bad_index, fault.extent = current->bad_extent;
    fault.access = -1;
    tell(fault);
}

bool ordered(const Note &note) {
    const Thread &now = *current;
    return note.epoch != epoch || note.thread == now.linear ||
           (note.thread / WARP == now.linear / WARP && note.warp_epoch != now.warp_epoch);
}

void race(const Note &with, int region, unsigned size, int access, uint64_t site) {
    Fault fault = blank(RACE);
    fault.access = access, fault.size = size, fault.region = region, fault.site = site;
    fault.other_site = with.site, fault.other_access = with.access, fault.other_thread = with.thread;
    tell(fault);
}

void check(int region, uint64_t address, unsigned size, int access, uint64_t site) {
    const Region &place = regions[region];
    if (place.kind >= CONSTANT)
        return;
    const Note note{epoch, current->warp_epoch, current->linear, access, site};
    for (unsigned at = 0; at < size; ++at) {
        Shadow &byte = shadows[region][address + at - place.low];
        if (place.kind == SHARED && access != 1 && byte.write.epoch < block_epoch) {
            Fault fault = blank(UNWRITTEN);
            fault.access = access, fault.size = size, fault.region = region, fault.site = site;
            tell(fault);
        }
        if (!ordered(byte.write) && !(access == 2 && byte.write.access == 2))
            race(byte.write, region, size, access, site);
        if (access) {
            for (const Note *read : {&byte.read, &byte.other_read})
                if (!ordered(*read))
                    race(*read, region, size, access, site);
            byte.write = note;
        } else {
            if (byte.read.epoch == epoch && byte.read.thread != note.thread &&
                !(byte.other_read.epoch == epoch && byte.other_read.thread / WARP != note.thread / WARP))
                byte.other_read = byte.read;
            byte.read = note;
        }
    }
}

// --- counts --------------------------------------------------------------------------------------------------------

std::unordered_map<uint64_t, unsigned> site_numbers;
std::vector<Tally> tallies;                          // per site number
std::vector<std::vector<std::vector<Request>>> requests;  // per warp and site

struct Copy {  // an asynchronous copy that the running thread makes next; none if `from` is 0
    uint64_t from, to;  // addresses in global memory and in a region of shared memory
};
Copy copy;

void count(int region, uint64_t address, unsigned size, int access, uint64_t site) {
    const Region &place = regions[region];
    if (place.kind >= CONSTANT)
        return;
    // A site that touches both kinds of memory, as a shared helper function may, gets two numbers.
    const auto [found, fresh] = site_numbers.try_emplace(site * 4 + place.kind * 2 + (access != 0), tallies.size());
    const unsigned number = found->second;
    if (fresh)
        tallies.push_back({site, place.kind, access, 0, 0, 0, 0, 0, 0});
    if (current->seen.size() <= number)
        current->seen.resize(number + 1);
    auto &of_warp = requests[current->linear / WARP];
    if (of_warp.size() <= number)
        of_warp.resize(number + 1);
    const unsigned nth = current->seen[number]++;
    if (of_warp[number].size() <= nth)
        of_warp[number].resize(nth + 1);
    Request &request = of_warp[number][nth];
    const unsigned lane = current->linear % WARP;
    request.lanes |= 1u << lane;
    request.size = size;
    request.address[lane] = address - place.low;  // every region begins in bank 0
    if (place.kind == GLOBAL && access == 0 && address == copy.from) {
        request.copies |= 1u << lane;
        request.to[lane] = copy.to;
        copy = {};
    }
}

// A warp copies 16 bytes a lane from lines of 128 bytes of global memory to shared memory. How many more sectors of 32
// bytes the data of each line fills there than it has here. Nsight Compute counts these as well on sm_90
// (docs/research/access.md).
uint64_t split(const Request &request) {
    uint64_t read[WARP], filled[WARP];  // sectors of global memory; sectors of shared memory, each with its line
    unsigned count = 0;
    for (unsigned lane = 0; lane < WARP; ++lane)
        if (request.copies >> lane & 1) {
            read[count] = request.address[lane] / 32;
            filled[count++] = request.address[lane] / 128 << 32 | request.to[lane] / 32;
        }
    std::sort(read, read + count);
    std::sort(filled, filled + count);
    const uint64_t *const read_end = std::unique(read, read + count);
    const uint64_t *const filled_end = std::unique(filled, filled + count);
    uint64_t more = 0;
    for (const uint64_t *from = read, *to = filled; from < read_end;) {
        const uint64_t line = *from / 4, *const from_start = from, *const to_start = to;
        while (from < read_end && *from / 4 == line)
            ++from;
        while (to < filled_end && *to >> 32 == line)
            ++to;
        more += std::max(to - to_start, from - from_start) - (from - from_start);
    }
    return more;
}

// Cost: the 32-byte sectors that a warp's lanes touch. Ideal: the fewest sectors that hold as many different bytes.
void add_global(Tally &tally, const Request &request) {
    uint64_t spans[WARP], sectors[WARP * 2];
    unsigned lanes = 0, count = 0;
    for (unsigned lane = 0; lane < WARP; ++lane)
        if (request.lanes >> lane & 1) {
            spans[lanes++] = request.address[lane];
            for (uint64_t at = request.address[lane] / 32; at <= (request.address[lane] + request.size - 1) / 32; ++at)
                sectors[count++] = at;
        }
    std::sort(sectors, sectors + count);
    std::sort(spans, spans + lanes);
    uint64_t bytes = 0, end = 0;
    for (unsigned i = 0; i < lanes; ++i) {
        const uint64_t start = std::max(spans[i], end), stop = spans[i] + request.size;
        bytes += stop > start ? stop - start : 0;
        end = std::max(end, stop);
    }
    tally.cost += std::unique(sectors, sectors + count) - sectors;
    tally.ideal += (bytes + 31) / 32;
    tally.bytes += bytes;
    tally.split += split(request);
}

// Whether each active lane in the range has the same address as the lane `apart` lanes away, if that lane is active.
bool paired(const Request &request, unsigned first, unsigned count, unsigned apart) {
    for (unsigned lane = first; lane < first + count; ++lane)
        if (request.lanes >> lane & request.lanes >> (lane ^ apart) & 1 &&
            request.address[lane] != request.address[lane ^ apart])
            return false;
    return true;
}

// Wavefronts: 32 banks of 4 bytes each, and a wavefront reads one word from each bank. Accesses of 8 and 16 bytes are
// split into half and quarter warps, two of which share a wavefront if neighboring lanes have the same address. Nsight
// Compute counts the same on sm_90 (docs/access.md).
void add_shared(Tally &tally, const Request &request) {
    const unsigned least = std::min(WARP, WARP * 4 / std::max(request.size, 4u));
    unsigned group = least;
    for (unsigned first = 0; first < WARP; first += group) {
        const unsigned both = first % (2 * least) == 0 ? 2 * least : least;
        const bool together = both > least && both <= WARP &&
                              (paired(request, first, both, 1) || paired(request, first, both, 2));
        group = together ? both : least;
        uint64_t words[WARP * 4];
        unsigned count = 0, in_bank[32] = {};
        for (unsigned lane = first; lane < first + group; ++lane)
            if (request.lanes >> lane & 1)
                for (uint64_t at = 0; at < std::max(request.size, 4u); at += 4)
                    words[count++] = (request.address[lane] + at) / 4;
        if (!count)
            continue;
        std::sort(words, words + count);
        const uint64_t *end = std::unique(words, words + count);
        for (const uint64_t *word = words; word < end; ++word)
            ++in_bank[*word % 32];
        tally.cost += *std::max_element(in_bank, in_bank + 32);
        tally.ideal += (end - words + 31) / 32;
    }
    tally.bytes += uint64_t(__builtin_popcount(request.lanes)) * request.size;
}

void close_requests() {
    for (auto &of_warp : requests)
        for (unsigned number = 0; number < of_warp.size(); ++number) {
            Tally &tally = tallies[number];
            tally.requests += of_warp[number].size();
            if (!of_warp[number].empty() && of_warp[number].front().lanes != of_warp[number].back().lanes)
                tally.unpaired += of_warp[number].size();
            for (const Request &request : of_warp[number])
                tally.region_kind == SHARED ? add_shared(tally, request) : add_global(tally, request);
            of_warp[number].clear();
        }
    for (Thread &thread : threads)
        std::fill(thread.seen.begin(), thread.seen.end(), 0);
}

// --- every access --------------------------------------------------------------------------------------------------

extern "C" {
extern const char __ehdr_start, __bss_start, _end;
}

// Where a plain run last found accesses in order, so that most take a few instructions: for reads, and for writes. They
// are empty in the other modes, and after an index past its array until the access that follows is reported.
struct Window {
    uint64_t low = 1ull << 63, bytes = WIDEST;  // no address of a program is near
    static constexpr unsigned WIDEST = 64;  // no access is wider; a smaller region gets no window
};
std::array<std::array<Window, 4>, 2> windows;

void remember(const Region &region, bool writes) {
    if (region.high - region.low < Window::WIDEST)
        return;
    auto &known = windows[writes];
    std::copy_backward(known.begin(), known.end() - 1, known.end());
    known[0] = {region.low, region.high - region.low};
}

int region_of(uint64_t address) {
    static unsigned last;
    if (last < regions.size() && regions[last].low <= address && address < regions[last].high)
        return last;
    for (unsigned i = 0; i < regions.size(); ++i)
        if (regions[i].low <= address && address < regions[i].high)
            return last = i;
    return -1;
}

// Whether the address is in a thread's own stack or in the library's constants.
bool harmless(uint64_t address) {
    if (reinterpret_cast<uint64_t>(&__ehdr_start) <= address && address < reinterpret_cast<uint64_t>(&__bss_start))
        return true;
    for (const char *stack : all_stacks)
        if (reinterpret_cast<uint64_t>(stack) <= address && address < reinterpret_cast<uint64_t>(stack) + STACK)
            return true;
    return false;
}

int nearest(uint64_t address) {
    int found = -1;
    uint64_t least = ~0ull;
    for (unsigned i = 0; i < regions.size(); ++i) {
        const uint64_t away = address < regions[i].low ? regions[i].low - address : address - regions[i].high;
        if (away < least && regions[i].kind != HIDDEN)
            least = away, found = i;
    }
    return found;
}

__attribute__((noinline)) void look_up(uint64_t address, unsigned size, int kind, void *from) {
    const uint64_t site = reinterpret_cast<uint64_t>(from) - reinterpret_cast<uint64_t>(&__ehdr_start);
    const int region = region_of(address);
    const bool inside = region >= 0 && address + size <= regions[region].high;
    if (!inside && region < 0 && harmless(address))
        return;
    if (launch->mode == COUNT && inside)
        return count(region, address, size, kind, site);
    if (current->bad_line || !inside || (kind && !regions[region].writable)) {
        Fault fault = blank(current->bad_line ? INDEX : !inside ? OUT_OF_BOUNDS : NOT_WRITABLE);
        fault.access = kind, fault.size = size, fault.site = site;
        fault.region = region < 0 ? nearest(address) : region;
        fault.line = current->bad_line, fault.index = current->bad_index, fault.extent = current->bad_extent;
        if (!inside && !current->bad_line) {
            const Region &near = regions[fault.region];
            fault.index = int64_t(address - near.low), fault.extent = int64_t(near.high - near.low);
        }
        tell(fault);
        stop();
    }
    if (launch->mode == RUN)
        return remember(regions[region], kind != 0);
    current->active = true;
    check(region, address, size, kind, site);
}

inline __attribute__((always_inline)) void access(uint64_t address, unsigned size, int kind, void *from) {
    if (address - own_stack < STACK)
        return;
    for (const Window &window : windows[kind != 0])
        if (address - window.low <= window.bytes - size)
            return;
    look_up(address, size, kind, from);
}

// An access to a larger struct, which the hardware splits into accesses of at most 16 bytes.
void access_range(uint64_t address, size_t size, int kind, void *from) {
    for (size_t at = 0; at < size; at += 16)
        access(address + at, std::min<size_t>(16, size - at), kind, from);
}

// --- barriers and blocks -------------------------------------------------------------------------------------------

void divergent(const Thread &waits, const Thread &other) {
    current = const_cast<Thread *>(&waits);
    Fault fault = blank(DIVERGENT);
    fault.line = waits.line;
    fault.other_thread = other.linear;
    fault.other_line = other.state == AT_BLOCK ? other.line : 0;
    tell(fault);
}

// All threads of a block that have not returned wait at a barrier, which must be the same for all. A thread may have
// returned, but not after touching memory since its last barrier: on hardware it would run ahead of the others there.
void check_barrier() {
    const Thread *first = nullptr;
    for (const Thread &thread : threads)
        if (thread.state == AT_BLOCK && (!first || thread.barrier == first->barrier))
            first = first ? first : &thread;
        else if (thread.state == AT_BLOCK)
            return divergent(thread, *first);
    for (const Thread &thread : threads)
        if (first && thread.state == DONE && thread.active)
            return divergent(*first, thread);
}

// Releases the lanes that wait for each other once every lane of their mask waits or has returned. `forced`: release
// them in any case, and report a fault.
bool release_lanes(Thread *lane, unsigned count, bool forced) {
    bool released = false;
    for (unsigned i = 0; i < count; ++i) {
        if (lane[i].state != AT_WARP)
            continue;
        const unsigned mask = lane[i].mask;
        bool all = true;
        for (unsigned j = 0; j < count; ++j)
            all &= !(mask >> j & 1) || lane[j].state == DONE || (lane[j].state == AT_WARP && lane[j].mask == mask);
        if (!all && !forced)
            continue;
        if (!all) {
            current = &lane[i];
            Fault fault = blank(DIVERGENT_WARP);
            fault.site = lane[i].site;
            tell(fault);
        }
        ++warp_clock;
        for (unsigned j = 0; j < count; ++j)
            if (lane[j].state == AT_WARP && lane[j].mask == mask)
                lane[j].state = READY, lane[j].warp_epoch = warp_clock;
        released = true;
    }
    return released;
}

void run_warp(Thread *lane, unsigned count) {
    do {
        for (unsigned i = 0; i < count && !stopped; ++i)
            if (lane[i].state == FRESH || lane[i].state == READY)
                resume(lane[i]);
    } while (!stopped && (release_lanes(lane, count, false) || release_lanes(lane, count, true)));
}

void run_block() {
    block_epoch = ++epoch;
    for (Thread &thread : threads) {
        thread.state = FRESH;
        thread.active = false;
        thread.bad_line = 0;
    }
    for (bool waiting = true; waiting && !stopped;) {
        for (unsigned first = 0; first < threads.size() && !stopped; first += WARP)
            run_warp(&threads[first], std::min<unsigned>(WARP, threads.size() - first));
        if (stopped)
            return;
        waiting = false;
        if (launch->mode == CHECK)
            check_barrier();
        if (launch->mode == COUNT)
            close_requests();
        ++epoch;
        for (Thread &thread : threads)
            if (thread.state == AT_BLOCK) {
                thread.state = READY;
                thread.active = false;
                waiting = true;
            }
        launch->barriers += waiting;
    }
}

// Waits until all lanes of the mask wait. `from`: the return address of the call in the source.
void wait_for_lanes(unsigned mask, void *from) {
    flush_pending_index();
    current->state = AT_WARP;
    current->mask = mask;
    current->site = reinterpret_cast<uint64_t>(from) - reinterpret_cast<uint64_t>(&__ehdr_start);
    leave();
}

}  // namespace

namespace emulator {

uint3 thread_index() noexcept { return current->index; }
uint3 block_index() noexcept { return block_at; }
uint3 block_extent() noexcept { return block_size; }
uint3 grid_extent() noexcept { return grid_size; }
unsigned lane() noexcept { return current->linear % WARP; }
void *dynamic_shared() noexcept { return shared_start; }

void block_barrier(int id, int line) {
    flush_pending_index();
    current->state = AT_BLOCK;
    current->barrier = id;
    current->line = line;
    leave();
}

void warp_barrier(unsigned mask) { wait_for_lanes(mask, __builtin_return_address(0)); }

unsigned active_lanes() {
    unsigned found = 0;
    const unsigned first = current->linear / WARP * WARP;
    for (unsigned i = first; i < std::min<size_t>(first + WARP, threads.size()); ++i)
        found |= threads[i].state != DONE ? 1u << (i - first) : 0;
    return found;
}

unsigned gather(unsigned mask, uint64_t value, uint64_t all[32]) {
    const unsigned first = current->linear / WARP * WARP;
    slots[current->linear] = value;
    wait_for_lanes(mask, __builtin_return_address(0));
    std::memcpy(all, &slots[first], WARP * sizeof *all);
    const unsigned there = active_lanes() & mask;
    wait_for_lanes(mask, __builtin_return_address(0));  // no lane writes a new value before all have read
    return there;
}

void touched(const void *address, unsigned size, int kind, void *site) {
    access(reinterpret_cast<uint64_t>(address), size, kind, site);
}

void copies_past_l1(const void *to, const void *from) {
    const uint64_t address = reinterpret_cast<uint64_t>(to);
    const int region = region_of(address);
    if (region >= 0 && regions[region].kind == SHARED)
        copy = {reinterpret_cast<uint64_t>(from), address - regions[region].low};
}

}  // namespace emulator

// An access that the compiler took for aligned, and is not. Faults of a place come first: out of bounds says more.
__attribute__((noinline)) void misaligned(uint64_t address, unsigned size, int kind, void *from) {
    const int region = region_of(address);
    if (launch->mode == COUNT || region < 0 || regions[region].kind == HIDDEN)
        return;
    Fault fault = blank(MISALIGNED);
    fault.access = kind, fault.size = size, fault.region = region;
    fault.site = reinterpret_cast<uint64_t>(from) - reinterpret_cast<uint64_t>(&__ehdr_start);
    fault.index = int64_t(address % size);
    tell(fault);
    stop();
}

// --- functions that the compiler calls -----------------------------------------------------------------------------

#define HOOK(name, size, kind)                                                                                        \
    void __tsan_##name(void *address) {                                                                               \
        access(reinterpret_cast<uint64_t>(address), size, kind, __builtin_return_address(0));                        \
    }
#define ALIGNED_HOOK(name, size, kind)                                                                                \
    void __tsan_##name(void *address) {                                                                               \
        access(reinterpret_cast<uint64_t>(address), size, kind, __builtin_return_address(0));                        \
        if (reinterpret_cast<uint64_t>(address) % size)                                                              \
            misaligned(reinterpret_cast<uint64_t>(address), size, kind, __builtin_return_address(0));                \
    }
#define HOOKS(size)                                                                                                   \
    ALIGNED_HOOK(read##size, size, 0) ALIGNED_HOOK(write##size, size, 1) HOOK(unaligned_read##size, size, 0)          \
    HOOK(unaligned_write##size, size, 1) ALIGNED_HOOK(volatile_read##size, size, 0)                                   \
    ALIGNED_HOOK(volatile_write##size, size, 1)

extern "C" {
HOOKS(1) HOOKS(2) HOOKS(4) HOOKS(8) HOOKS(16)
void __tsan_read_range(void *address, size_t size) {
    access_range(reinterpret_cast<uint64_t>(address), size, 0, __builtin_return_address(0));
}
void __tsan_write_range(void *address, size_t size) {
    access_range(reinterpret_cast<uint64_t>(address), size, 1, __builtin_return_address(0));
}
void __tsan_init() {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit() {}

// -fsanitize=bounds: an index past an array of known extent. It is reported with the access that follows.
struct BoundsSite {
    const char *file;
    uint32_t line, column;
    struct Type { uint16_t kind, info; char name[1]; } const *array, *index;
};
void __ubsan_handle_out_of_bounds(const BoundsSite *where, uint64_t index) {
    if (launch->mode == COUNT || current->bad_line)
        return;
    // `info` of an integer type: the lowest bit says whether it is signed, the others are log2 of its width.
    const unsigned bits = 1u << (where->index->info >> 1);
    current->bad_index = bits >= 64 ? int64_t(index) : int64_t(index << (64 - bits)) >> (64 - bits);
    const char *extent = std::strrchr(where->array->name, '[');
    current->bad_extent = 0;
    if (extent)  // such as 'float [32]'; the first extent counts, as in 'float [8][32]'
        current->bad_extent = std::atoll(std::strchr(where->array->name, '[') + 1);
    current->bad_line = where->line;
    windows = {};
}

__attribute__((visibility("default"))) void kernelwatch_run(Launch *what) {
    launch = what;
    stopped = false;
    known.clear();
    site_numbers.clear();
    tallies.clear();
    windows = {};
    copy = {};
    block_size = {what->block[0], what->block[1], what->block[2]};
    grid_size = {what->grid[0], what->grid[1], what->grid[2]};
    stacks = all_stacks;
    threads.resize(size_t(block_size.x) * block_size.y * block_size.z);
    int linear = 0;
    for (Thread &thread : threads) {
        thread.linear = linear++;
        thread.index = {thread.linear % block_size.x, thread.linear / block_size.x % block_size.y,
                        thread.linear / block_size.x / block_size.y};
        thread.stack = nullptr;
        thread.warp_epoch = 0;
        thread.seen.clear();
    }
    shared_memory.assign(what->shared_bytes + 256, 0xA5);
    shared_start = shared_memory.data() + (-reinterpret_cast<uint64_t>(shared_memory.data()) & 127);
    regions.assign(what->regions, what->regions + what->region_count);
    const uint64_t start = reinterpret_cast<uint64_t>(shared_start);
    if (what->shared_bytes)
        regions.push_back({start, start + what->shared_bytes, SHARED, 1});
    shadows.clear();
    epoch = warp_clock = 0;
    for (const Region &region : regions)
        shadows.emplace_back(what->mode == CHECK ? region.high - region.low : 0);
    requests.assign(what->mode == COUNT ? (threads.size() + WARP - 1) / WARP : 0, {});
    for (block_at.z = 0; block_at.z < grid_size.z; ++block_at.z)
        for (block_at.y = 0; block_at.y < grid_size.y; ++block_at.y)
            for (block_at.x = 0; block_at.x < grid_size.x && !stopped; ++block_at.x)
                run_block();
    for (const Tally &tally : tallies)
        if (what->tally_count < what->tally_room)
            what->tallies[what->tally_count++] = tally;
    shadows.clear();
    what->stopped = stopped;
}
}
