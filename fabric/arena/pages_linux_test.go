package arena

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/shoal-ml/shoal/internal/group"
)

// Segments, and late ones that are filled, have all their pages, huge ones where they fit, in the
// agent and in the worker.
func TestSegmentsLieInHugePages(t *testing.T) {
	const setting = "/sys/kernel/mm/transparent_hugepage/shmem_enabled"
	if allowed, err := os.ReadFile(setting); err != nil ||
		strings.Contains(string(allowed), "[deny]") {
		t.Skipf("%s forbids huge pages: %q, %v", setting, allowed, err)
	}
	if err := tryCollapse(t); err != nil {
		t.Skipf("the kernel makes no huge page of private memory either: %v", err)
	}
	const n = 3*hugeBytes + pageBytes
	agent, err := NewSegment("huge", n)
	if err != nil {
		t.Fatal(err)
	}
	defer agent.Close()
	fd, err := unix.FcntlInt(uintptr(agent.FD()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	worker, err := OpenSegment(fd)
	if err != nil {
		t.Fatal(err)
	}
	defer worker.Close()
	late, err := NewLateSegment("late", n)
	if err != nil {
		t.Fatal(err)
	}
	defer late.Close()
	for late.Fill() {
	}
	for who, s := range map[string]*Segment{"agent": agent, "agent, later,": late} {
		if got := bytesReserved(t, s); got != n {
			t.Errorf("the %s reserves %d bytes, want %d", who, got, n)
		}
	}
	for who, s := range map[string]*Segment{"agent": agent, "worker": worker,
		"agent, later,": late} {
		if got := bytesMappedHuge(t, s.Mem); len(s.Mem) != n || got != 3*hugeBytes {
			t.Errorf("the %s maps %d bytes in huge pages, of %d, want %d of %d", who, got,
				len(s.Mem), 3*hugeBytes, n)
		}
		for i, b := range s.Mem {
			if b != 0 {
				t.Fatalf("the %s finds %d at byte %d of fresh memory", who, b, i)
			}
		}
	}
}

// bytesReserved returns how many bytes of a segment have pages, or fails the test.
func bytesReserved(t *testing.T, s *Segment) int64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Fstat(s.FD(), &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks * 512
}

// newLateSegment makes a segment that Fill fills in several calls, without a page; the test closes
// it. It skips the test where the kernel makes no late segments.
func newLateSegment(t *testing.T) *Segment {
	t.Helper()
	if !overcommits() {
		t.Skip("this kernel promises no more memory than it has")
	}
	s, err := NewLateSegment("late", fillBytes+hugeBytes+pageBytes)
	if err != nil {
		t.Fatal(err)
	}
	if got := bytesReserved(t, s); got != 0 {
		t.Errorf("%d bytes are reserved before anybody fills the segment", got)
	}
	return s
}

// What two processes write while others fill the segment is still there afterwards.
func TestWhatIsWrittenWhileASegmentIsFilledStays(t *testing.T) {
	s := newLateSegment(t)
	defer s.Close()
	fd, err := unix.FcntlInt(uintptr(s.FD()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	worker, err := mapFile(fd, int64(len(s.Mem)), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := errors.Join(unmap(worker), unix.Close(fd)); err != nil {
			t.Error(err)
		}
	}()
	const writers = 2
	word := func(i int) uint32 { return uint32(i)*2654435761 | 1 }
	g := group.New(context.Background())
	for w, mem := range [writers][]byte{s.Mem, worker} {
		g.Go("writer", func(context.Context) error {
			for i := w * 4; i+4 <= len(mem); i += writers * 4 {
				binary.LittleEndian.PutUint32(mem[i:], word(i))
			}
			return nil
		})
	}
	for range 2 {
		g.Go("filler", func(context.Context) error {
			for s.Fill() {
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	if got := bytesReserved(t, s); got != int64(len(s.Mem)) {
		t.Errorf("%d bytes are reserved, want %d", got, len(s.Mem))
	}
	for _, mem := range [][]byte{s.Mem, worker} {
		for i := 0; i+4 <= len(mem); i += 4 {
			if got := binary.LittleEndian.Uint32(mem[i:]); got != word(i) {
				t.Fatalf("byte %d is of %#x, and %#x was written", i, got, word(i))
			}
		}
	}
}

// Close waits for Fill, and then Fill does nothing.
func TestASegmentIsClosedWhileItIsFilled(t *testing.T) {
	for range 20 {
		s := newLateSegment(t)
		g, begun := group.New(context.Background()), make(chan bool, 2)
		for range cap(begun) {
			g.Go("filler", func(context.Context) error {
				begun <- s.Fill()
				for s.Fill() {
				}
				return nil
			})
		}
		<-begun
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := g.Wait(); err != nil {
			t.Fatal(err)
		}
		if s.Fill() {
			t.Error("a closed segment was filled")
		}
	}
}

// tryCollapse returns why no huge page can be had even where no setting of shared memory counts;
// nil = one can. It fails the test where it gets no memory.
func tryCollapse(t *testing.T) error {
	mem, err := unix.Mmap(-1, 0, 2*hugeBytes, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mem)
	clear(mem)
	whole := -uintptr(unsafe.Pointer(&mem[0])) & (hugeBytes - 1)
	return unix.Madvise(mem[whole:whole+hugeBytes], unix.MADV_COLLAPSE)
}

// bytesMappedHuge returns how many bytes of mem, all of a mapping, are mapped as huge pages. The
// test fails if the kernel knows no such mapping.
func bytesMappedHuge(t *testing.T, mem []byte) (bytes int) {
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	start := uintptr(unsafe.Pointer(&mem[0]))
	head, here := fmt.Sprintf("%x-%x ", start, start+uintptr(len(mem))), false
	for in := bufio.NewScanner(f); in.Scan(); {
		switch name, value, _ := strings.Cut(in.Text(), ":"); {
		case strings.Contains(name, "-"):
			here = strings.HasPrefix(in.Text(), head)
		case here && name == "ShmemPmdMapped":
			fmt.Sscan(value, &bytes)
			return bytes << 10
		}
	}
	t.Fatalf("no mapping %s", head)
	return 0
}

// mapFile maps large files from a huge page on, also where they end inside a page, as 4 KiB more
// than 2 MiB do on a processor with larger pages; and unmap frees all addresses.
func TestMappingsStartAtHugePagesAndLeaveNothingBehind(t *testing.T) {
	fd, err := unix.MemfdCreate("huge", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	const rounds = 1000
	before := addressSpace(t)
	for i := range rounds {
		n := int64(hugeBytes + i%3*pageBytes/2)
		mem, err := mapFile(fd, n, 0)
		if err != nil {
			t.Fatal(err)
		}
		if over := uintptr(unsafe.Pointer(&mem[0])) & (hugeBytes - 1); over != 0 ||
			int64(len(mem)) != n {
			t.Fatalf("%d bytes became %d, %d behind a huge page's start", n, len(mem), over)
		}
		if err := unmap(mem); err != nil {
			t.Fatal(err)
		}
	}
	if grown := addressSpace(t) - before; grown > rounds/2*hugeBytes {
		t.Errorf("%d mappings left %d bytes of address space mapped", rounds, grown)
	}
}

// addressSpace returns how many bytes of addresses this process has mapped, or fails the test.
func addressSpace(t *testing.T) (bytes int) {
	pages := 0
	b, err := os.ReadFile("/proc/self/statm")
	if err == nil {
		_, err = fmt.Sscan(string(b), &pages)
	}
	if err != nil {
		t.Fatal(err)
	}
	return pages * pageBytes
}
