package agent_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	api "github.com/shoal-ml/shoal/api/worker"
	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/fabric/arena"
)

// No worker can write a shared result, by whatever it does with its descriptor, nor give it as an
// input.
func TestSharedResultIsReadOnly(t *testing.T) {
	w := joinRaw(t, startAgent(t, 1), 0)
	r, fds := w.request(&api.SharedRequest{Name: "result", Bytes: 16})
	if r.Type != "shared" || r.ID != 2 || r.Bytes != 4096 || len(fds) != 1 {
		t.Fatalf("%+v with %d descriptors", r, len(fds))
	}
	defer arena.CloseFDs(fds)
	again, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", fds[0]), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	for _, fd := range []int{fds[0], int(again.Fd())} {
		if _, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_WRITE,
			unix.MAP_SHARED); err == nil {
			t.Error("a worker maps it to write")
		}
		mem, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ, unix.MAP_SHARED)
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Mprotect(mem, unix.PROT_READ|unix.PROT_WRITE); err == nil {
			t.Error("a worker makes its mapping one to write")
		}
		if _, err := unix.Pwrite(fd, []byte{1}, 0); err == nil {
			t.Error("a worker writes to the descriptor")
		}
		if unix.Ftruncate(fd, 0) == nil ||
			unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 4096) == nil {
			t.Error("a worker takes its memory away")
		}
		if err := unix.Munmap(mem); err != nil {
			t.Fatal(err)
		}
	}
	for field, change := range map[string]func(d *arena.Descriptor){
		"in.segment": func(d *arena.Descriptor) { d.In.Segment = 2 },
		"out.segment": func(d *arena.Descriptor) {
			d.Kind, d.Out.Segment = uint8(collective.ReduceScatter), 2
		},
		"out.offset": func(d *arena.Descriptor) {
			d.Out = arena.Ref{Segment: 2, Offset: 4098, Count: 4}
		},
		"out.count": func(d *arena.Descriptor) {
			d.Out = arena.Ref{Segment: 2, Offset: 4088, Count: 4}
		},
	} {
		d := validCall()
		change(&d)
		w.submit(d)
		if status, text := w.wait(); status != arena.Failed ||
			!strings.HasPrefix(text, "rank 0, "+field+": ") {
			t.Errorf("%s: status %d, %q", field, status, text)
		}
	}
	if r, _ := w.request(&api.SharedRequest{Name: "result", Bytes: 16,
		Group: 7}); !strings.Contains(r.Error, "7 is no group of this rank") {
		t.Errorf("of a group that is not there: %+v", r)
	}
	if r, _ := w.request(&api.SharedRequest{Name: "a\xff", Bytes: 16}); r.Field != "name" ||
		!strings.Contains(r.Error, "not UTF-8") {
		t.Errorf("of a name that JSON changes: %+v", r)
	}
	if r, fds := w.request(&api.SharedRequest{Name: "result", Bytes: 16}); r.ID != 2 ||
		len(fds) != 1 {
		t.Errorf("asked again: %+v", r)
	} else {
		arena.CloseFDs(fds)
	}
	if r, _ := w.request(&api.FreeRequest{ID: 2}); r.Type != "freed" {
		t.Errorf("freed: %+v", r)
	}
}
