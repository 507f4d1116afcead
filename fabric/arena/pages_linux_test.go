package arena

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

func TestSegmentsLieInHugePages(t *testing.T) {
	const setting = "/sys/kernel/mm/transparent_hugepage/shmem_enabled"
	if allowed, err := os.ReadFile(setting); err != nil || strings.Contains(string(allowed), "[deny]") {
		t.Skipf("%s forbids huge pages: %q, %v", setting, allowed, err)
	}
	if err := collapseOne(t); err != nil {
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
	for who, s := range map[string]*Segment{"agent": agent, "worker": worker} {
		if got := hugeMapped(t, s.Mem); len(s.Mem) != n || got != 3*hugeBytes {
			t.Errorf("the %s maps %d bytes in huge pages, of %d, want %d of %d", who, got, len(s.Mem), 3*hugeBytes, n)
		}
		for i, b := range s.Mem {
			if b != 0 {
				t.Fatalf("the %s finds %d at byte %d of fresh memory", who, b, i)
			}
		}
	}
	var st unix.Stat_t
	if err := unix.Fstat(agent.FD(), &st); err != nil || st.Blocks*512 != n {
		t.Errorf("%d bytes are reserved, want %d: %v", st.Blocks*512, n, err)
	}
}

// collapseOne says why no huge page can be had even where no setting of shared memory counts.
func collapseOne(t *testing.T) error {
	mem, err := unix.Mmap(-1, 0, 2*hugeBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mem)
	clear(mem)
	whole := -uintptr(unsafe.Pointer(&mem[0])) & (hugeBytes - 1)
	return unix.Madvise(mem[whole:whole+hugeBytes], unix.MADV_COLLAPSE)
}

// hugeMapped is how many bytes of a mapping are mapped as huge pages.
func hugeMapped(t *testing.T, mem []byte) (bytes int) {
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

func TestMappingsStartAtHugePagesAndLeaveNothingBehind(t *testing.T) {
	fd, err := unix.MemfdCreate("huge", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	const rounds = 1000
	before := addressSpace(t)
	for i := range rounds {
		n := int64(hugeBytes + i%2*pageBytes)
		mem, err := mapFile(fd, n, 0)
		if err != nil {
			t.Fatal(err)
		}
		if over := uintptr(unsafe.Pointer(&mem[0])) & (hugeBytes - 1); over != 0 || int64(len(mem)) != n {
			t.Fatalf("%d bytes became %d, %d behind a huge page's start", n, len(mem), over)
		}
		if err := unmap(mem); err != nil {
			t.Fatal(err)
		}
	}
	if grown := addressSpace(t) - before; grown > rounds/2*hugeBytes {
		t.Errorf("%d mappings left %d bytes of address space behind", rounds, grown)
	}
}

// addressSpace is how many bytes of addresses this process has mapped.
func addressSpace(t *testing.T) (pages int) {
	b, err := os.ReadFile("/proc/self/statm")
	if err == nil {
		_, err = fmt.Sscan(string(b), &pages)
	}
	if err != nil {
		t.Fatal(err)
	}
	return pages * pageBytes
}
