package arena

import (
	"errors"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// policyAt asks the kernel which policy the first address of mem has, and for which of the first 64
// nodes, as a bit each. Where there is a policy it writes to mem, and the test fails if the page is
// then on another node. It skips the test where the kernel does not tell.
func policyAt(t *testing.T, mem []byte) (mode int32, nodes uint64) {
	t.Helper()
	var mask [16]uint64
	ask := func(mode *int32, mask *[16]uint64, flags uintptr) {
		bits := uintptr(0)
		if mask != nil {
			bits = 1024
		}
		_, _, errno := unix.Syscall6(unix.SYS_GET_MEMPOLICY, uintptr(unsafe.Pointer(mode)),
			uintptr(unsafe.Pointer(mask)), bits, uintptr(unsafe.Pointer(&mem[0])), flags, 0)
		if errors.Is(errno, unix.ENOSYS) || errors.Is(errno, unix.EPERM) {
			t.Skipf("the kernel tells no policies here: %v", errno)
		}
		if errno != 0 {
			t.Fatal(errno)
		}
	}
	ask(&mode, &mask, unix.MPOL_F_ADDR)
	if mode != unix.MPOL_DEFAULT {
		var page int32
		mem[0] = 1
		if ask(&page, nil, unix.MPOL_F_ADDR|unix.MPOL_F_NODE); mask[0]>>page&1 == 0 {
			t.Errorf("the page lies on node %d, and should on one of %b", page, mask[0])
		}
	}
	return mode, mask[0]
}

// mapAgain maps the memory of a segment once more, as a worker does, until the test ends, or fails
// the test.
func mapAgain(t *testing.T, s *Segment) []byte {
	t.Helper()
	fd, err := unix.FcntlInt(uintptr(s.FD()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	w, err := OpenSegment(fd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	return w.Mem
}

// skipWithoutPolicies skips a test where the kernel sets no policies.
func skipWithoutPolicies(t *testing.T) {
	t.Helper()
	mem, err := unix.Mmap(-1, 0, pageBytes, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mem)
	if err := preferNode(mem, 0); err != nil {
		t.Skipf("the kernel sets no policies here: %v", err)
	}
}

// The policy is the file's: every mapping has it, in the agent and in the worker.
func TestSegmentsLieOnTheirNodes(t *testing.T) {
	skipWithoutPolicies(t)
	const absent = 1000 // no host has it: the kernel refuses
	for what, c := range map[string]struct {
		bytes int64
		nodes []int
		want  int32
	}{
		"no choice":      {pageBytes, nil, unix.MPOL_DEFAULT},
		"one":            {pageBytes, []int{0}, unix.MPOL_PREFERRED},
		"one, huge":      {3*hugeBytes + pageBytes, []int{0}, unix.MPOL_PREFERRED},
		"in turns":       {3*hugeBytes + pageBytes, []int{0, 0}, unix.MPOL_PREFERRED},
		"that is absent": {pageBytes, []int{absent}, unix.MPOL_DEFAULT},
		"no number":      {pageBytes, []int{-1}, unix.MPOL_DEFAULT},
	} {
		s, err := NewSegment("near", c.bytes, c.nodes...)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		for _, mem := range [][]byte{s.Mem, mapAgain(t, s)} {
			for off := int64(0); off < c.bytes; off += hugeBytes {
				if mode, nodes := policyAt(t, mem[off:]); mode != c.want ||
					mode != unix.MPOL_DEFAULT && nodes != 1 {
					t.Errorf("%s: at byte %d the policy is %d, nodes %b", what, off, mode, nodes)
				}
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// Several nodes have a huge page each in turns, and small files begin with each in turns. The
// kernel refuses a node that is absent, which shows where its turn is.
func TestNodesTakeTurns(t *testing.T) {
	skipWithoutPolicies(t)
	nodes := []int{0, 1000}
	seen := map[int32]int{}
	for range 2 {
		s, err := NewResult("turns", pageBytes, nodes...)
		if err != nil {
			t.Fatal(err)
		}
		mode, _ := policyAt(t, s.Mem)
		seen[mode]++
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	if seen[unix.MPOL_DEFAULT] != 1 || seen[unix.MPOL_PREFERRED] != 1 {
		t.Errorf("of two small files so many have which policy: %v", seen)
	}
	if stripedFiles.Load()%2 == 0 {
		stripedFiles.Add(1) // the next begins with the first node
	}
	s, err := NewSegment("turns", 4*hugeBytes, nodes...)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for i, want := range []int32{unix.MPOL_PREFERRED, unix.MPOL_DEFAULT} {
		if mode, _ := policyAt(t, s.Mem[i*hugeBytes:]); mode != want {
			t.Errorf("huge page %d has policy %d, want %d", i, mode, want)
		}
	}
}

// A file of many stripes has no more mappings than a process may.
func TestLargeFilesHaveWiderStripes(t *testing.T) {
	skipWithoutPolicies(t)
	const n = 5 << 30
	fd, err := unix.MemfdCreate("wide", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, n); err != nil { // room alone, no pages
		t.Fatal(err)
	}
	placePages(fd, n, []int{0, 0})
	mem, err := mapFile(fd, n, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unmap(mem)
	for _, off := range []int{0, n / 2, n - pageBytes} {
		if mode, nodes := policyAt(t, mem[off:]); mode != unix.MPOL_PREFERRED || nodes != 1 {
			t.Errorf("at byte %d the policy is %d, nodes %b", off, mode, nodes)
		}
	}
}
