package arena

import (
	"bytes"
	"context"
	"errors"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/shoal-ml/shoal/internal/group"
)

// Decode reads what Encode has written.
func TestDescriptorRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ref := func(name string) Ref {
			return Ref{rapid.Uint32().Draw(t, name), rapid.Uint64().Draw(t, name),
				rapid.Uint64().Draw(t, name)}
		}
		want := Descriptor{Ticket: rapid.Uint64().Draw(t, "ticket"),
			Kind: rapid.Byte().Draw(t, "kind"), DType: rapid.Byte().Draw(t, "dtype"),
			Reduction: rapid.Byte().Draw(t, "op"), NDim: rapid.Byte().Draw(t, "ndim"),
			Group: rapid.Uint32().Draw(t, "group"),
			Peer:  rapid.Uint32().Draw(t, "peer"), Tag: rapid.Uint32().Draw(t, "tag"),
			Weight: rapid.Float64().Draw(t, "weight"),
			In:     ref("in"), Out: ref("out"), Splits: ref("splits"),
			Flags: Flags{rapid.Bool().Draw(t, "more"), rapid.Bool().Draw(t, "step"),
				rapid.Bool().Draw(t, "aside"), rapid.Bool().Draw(t, "narrow"),
				rapid.Bool().Draw(t, "sparing")},
			Pieces: rapid.Bool().Draw(t, "pieces"), View: rapid.Uint32().Draw(t, "view"),
			Told: Told{rapid.Uint32().Draw(t, "data"), rapid.Uint32().Draw(t, "compute"),
				rapid.Uint32().Draw(t, "optimizer"), rapid.Float32().Draw(t, "loss")}}
		want.Splits.Count &= 1<<32 - 1 // the format has 32 bits for it
		for i := range want.Shape {
			want.Shape[i] = rapid.Uint64().Draw(t, "dim")
		}
		var raw [descriptorBytes]byte
		want.Encode(raw[:])
		var got Descriptor
		got.Decode(&raw)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatal(diff)
		}
	})
}

// The bytes of a descriptor are those of docs/formats/arena.md, which the Python client writes as
// well.
func TestDescriptorBytes(t *testing.T) {
	var raw [descriptorBytes]byte
	d := Descriptor{Ticket: 1, Kind: 2, DType: 3, Reduction: 4, NDim: 5, Group: 6, Peer: 7, Tag: 8,
		Weight: 1,
		In:     Ref{9, 10, 11}, Out: Ref{12, 13, 14}, Splits: Ref{15, 16, 17},
		Shape: [MaxDims]uint64{18, 0, 0, 0, 0, 0, 0, 19}, View: 23, Told: Told{20, 21, 22, 1}}
	d.Encode(raw[:])
	for off, want := range map[int]byte{0: 1, 8: 2, 9: 3, 10: 4, 11: 5, 12: 6, 16: 7, 20: 8,
		30: 0xf0, 31: 0x3f, 32: 9, 36: 12, 40: 10, 48: 11,
		56: 13, 64: 14, 72: 15, 76: 17, 80: 16, 88: 18, 144: 19, 156: 23, 176: 20, 180: 21, 184: 22,
		190: 0x80, 191: 0x3f} {
		if raw[off] != want {
			t.Errorf("byte %d is %d, want %d", off, raw[off], want)
		}
		raw[off] = 0
	}
	if raw != [descriptorBytes]byte{} {
		t.Errorf("bytes beside the fields: %v", raw)
	}
	for want, flags := range map[byte]Flags{1: {More: true}, 2: {Step: true}, 4: {Aside: true},
		8: {Narrow: true}, 16: {Sparing: true}} {
		d.Flags = flags
		if d.Encode(raw[:]); raw[152] != want {
			t.Errorf("flags %+v are %d, want %d", flags, raw[152], want)
		}
	}
	d.Flags, d.Pieces = Flags{}, true
	if d.Encode(raw[:]); raw[152] != 32 {
		t.Errorf("a call in pieces has the flags %d, want 32", raw[152])
	}
}

// newControl returns the control block of a worker with rank 3, as its agent sees it, in memory
// that is freed when the test ends; without memory it fails the test.
func newControl(t *testing.T) *Control {
	t.Helper()
	s, err := NewSegment("test", ControlBytes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return InitControl(s.Mem, 3)
}

// A worker sees that its call has ended, and how, though later calls use the same slot; a long
// error is cut.
func TestCompletion(t *testing.T) {
	agent := newControl(t)
	worker, err := OpenControl(agent.mem)
	if err != nil {
		t.Fatal(err)
	}
	if !worker.AgentParked() {
		t.Error("a fresh agent does not want to be rung")
	}
	for ticket := uint64(1); ticket < 3*Slots; ticket++ {
		worker.WriteDescriptor(&Descriptor{Ticket: ticket, Tag: uint32(ticket)})
		worker.SetTail(ticket)
		var d Descriptor
		if agent.ReadDescriptor(agent.Tail(), &d); d.Tag != uint32(ticket) ||
			worker.Completion(ticket) != 0 {
			t.Fatalf("ticket %d: read %d, completion %d", ticket, d.Tag, worker.Completion(ticket))
		}
		agent.Complete(ticket, Done, "")
		if worker.Completion(ticket) != Done || worker.Completion(ticket+Slots) != 0 {
			t.Fatalf("ticket %d is not done, or ticket %d is", ticket, ticket+Slots)
		}
	}
	agent.Complete(7, Failed, strings.Repeat("x", 5000))
	if got := worker.ErrorText(7); worker.Completion(7) != Failed ||
		len(got) != SlotBytes-offErrText {
		t.Errorf("status %d, %d bytes of text", worker.Completion(7), len(got))
	}
}

// A worker reads the view that its agent has written; a cursor that is too long is refused.
func TestViewRoundTrip(t *testing.T) {
	agent := newControl(t)
	want := View{Generation: 3, Rank: 2, Size: 5, Steps: 1 << 40, Joined: 2, New: true,
		Stopped: true, Cursor: bytes.Repeat([]byte{7}, 3000)}
	if err := agent.SetView(want); err != nil {
		t.Fatal(err)
	}
	worker, err := OpenControl(agent.mem)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, worker.View()); diff != "" {
		t.Error(diff)
	}
	if err := agent.SetView(View{Cursor: make([]byte, MaxCursor+1)}); err == nil {
		t.Error("a cursor beyond the header was written")
	}
}

// A worker refuses memory that is no control block, or one of another version or size.
func TestOpenControlRefusesOtherMemory(t *testing.T) {
	for name, change := range map[string]func(mem []byte){
		"magic":   func(mem []byte) { mem[offMagic]++ },
		"version": func(mem []byte) { mem[offVersion]++ },
		"slots":   func(mem []byte) { mem[offSlots]++ },
	} {
		c := newControl(t)
		change(c.mem)
		if _, err := OpenControl(c.mem); err == nil {
			t.Errorf("another %s was taken", name)
		}
	}
	if _, err := OpenControl(make([]byte, 10)); err == nil {
		t.Error("ten bytes were taken")
	}
}

// Sizes of segments are rounded up to pages, and those that no host has are refused.
func TestSegmentSizes(t *testing.T) {
	for n, want := range map[int64]int{0: 4096, 1: 4096, 4096: 4096, 4097: 8192} {
		s, err := NewSegment("test", n)
		if err != nil {
			t.Fatal(err)
		}
		if len(s.Mem) != want {
			t.Errorf("%d bytes became %d, want %d", n, len(s.Mem), want)
		}
		if err := errors.Join(s.Close(), s.Close()); err != nil {
			t.Error(err)
		}
	}
	for _, n := range []int64{-1, 1 << 47, 1 << 45} {
		if s, err := NewSegment("test", n); err == nil {
			s.Close()
			t.Errorf("a segment of %d bytes was made", n)
		}
	}
}

// connPair returns both ends of a control socket, which are closed when the test ends; where it
// cannot, it fails the test.
func connPair(t *testing.T) (worker, agent *Conn) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if worker, err = Dial(context.Background(), path); err != nil {
		t.Fatal(err)
	}
	if agent, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { worker.Close(); agent.Close() })
	return worker, agent
}

// TestAcceptOutlastsTooManyFiles: a worker that comes while the process has no descriptor left is
// accepted when there is one.
func TestAcceptOutlastsTooManyFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	worker, err := Dial(context.Background(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer worker.Close()
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	few := limit
	few.Cur = 64
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	defer unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)
	var used []int
	for err == nil {
		var fd int
		if fd, err = unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0); err == nil {
			used = append(used, fd)
		}
	}
	waited := 0
	l.wait = func() {
		waited++
		CloseFDs(used)
		used = nil
	}
	agent, err := l.Accept()
	CloseFDs(used)
	if err != nil || waited != 1 {
		t.Fatalf("waited %d times, %v", waited, err)
	}
	agent.Close()
}

// A descriptor that is sent over the control socket maps the same memory, and no child inherits it.
func TestDescriptorsTravelCloseOnExec(t *testing.T) {
	worker, agent := connPair(t)
	s, err := NewSegment("test", 1)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := agent.Send("here", s.FD()); err != nil {
		t.Fatal(err)
	}
	b, fds, err := worker.Receive(make([]byte, 100))
	if err != nil || string(b) != `"here"` || len(fds) != 1 {
		t.Fatalf("%q, %v, %v", b, fds, err)
	}
	if flags, err := unix.FcntlInt(uintptr(fds[0]), unix.F_GETFD, 0); err != nil ||
		flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("flags %d, %v: a child of the worker would inherit the arena", flags, err)
	}
	other, err := OpenSegment(fds[0])
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	s.Mem[77] = 42
	if other.Mem[77] != 42 {
		t.Error("the two sides see different memory")
	}
}

// Messages that are too large are neither sent nor taken, and a closed socket is io.EOF.
func TestMessagesAreBounded(t *testing.T) {
	worker, agent := connPair(t)
	if err := worker.Send(strings.Repeat("x", MaxMessage)); err == nil {
		t.Error("a message over the limit was sent")
	}
	if err := worker.Send(strings.Repeat("x", 200)); err != nil {
		t.Fatal(err)
	}
	if b, _, err := agent.Receive(make([]byte, 100)); err == nil {
		t.Errorf("half a packet was taken: %d bytes", len(b))
	}
	worker.Close()
	if _, _, err := agent.Receive(make([]byte, 100)); !errors.Is(err, io.EOF) {
		t.Errorf("got %v, want EOF", err)
	}
}

// A ring wakes who waits, and so does the end of the other side.
func TestWaitOrHangUpWakesByBoth(t *testing.T) {
	worker, agent := connPair(t)
	b, err := NewPolledBell()
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	b.Ring()
	b.Ring()
	if err := b.WaitOrHangUp(worker); err != nil {
		t.Errorf("rung: %v", err)
	}
	agent.Close()
	if err := b.WaitOrHangUp(worker); !errors.Is(err, io.EOF) {
		t.Errorf("hung up: %v, want EOF", err)
	}
}

// Each bell of a set wakes its Wait, without allocating, and a closed set fails.
func TestWaitWakesByEachBell(t *testing.T) {
	set, err := NewBellSet()
	if err != nil {
		t.Fatal(err)
	}
	bell, err := set.NewBell()
	if err != nil {
		t.Fatal(err)
	}
	for _, ring := range []func(){set.Ring, bell.Ring} {
		g, waits := group.New(context.Background()), make(chan struct{})
		g.Go("waits", func(context.Context) error {
			for range 3 {
				waits <- struct{}{}
				if err := set.Wait(); err != nil {
					return err
				}
			}
			return nil
		})
		for range 3 {
			<-waits
			ring()
			ring() // counts as the same, or lets one Wait return at once
		}
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	}
	bell.Ring()
	if n := testing.AllocsPerRun(100, func() { set.Wait(); bell.Ring() }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if err := errors.Join(bell.Close(), set.Close()); err != nil {
		t.Error(err)
	}
	if err := set.Wait(); err == nil {
		t.Error("a closed set rings")
	}
}

// A worker that reads what it rings, or that fills the counter of its bell, silences itself only.
func TestBellsAreApart(t *testing.T) {
	set, err := NewBellSet()
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	var bells [2]*Bell
	for i := range bells {
		if bells[i], err = set.NewBell(); err != nil {
			t.Fatal(err)
		}
		defer bells[i].Close()
	}
	bells[0].Ring()
	bells[1].Ring()
	if _, err := unix.Read(bells[1].FD(), make([]byte, 8)); err != nil { // it swallows its own ring
		t.Fatal(err)
	}
	if err := set.Wait(); err != nil {
		t.Errorf("the ring of the other worker: %v", err)
	}
	full := [8]byte{0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	if _, err := unix.Write(bells[1].FD(), full[:]); err != nil {
		t.Fatal(err)
	}
	bells[1].Ring() // blocks nobody
	for range 3 {
		if err := set.Wait(); err != nil {
			t.Fatal(err)
		}
		bells[0].Ring()
	}
}

// A path that is too long for the kernel is refused with advice.
func TestSocketPathTooLong(t *testing.T) {
	if _, err := Listen("/" + strings.Repeat("x", 120)); err == nil ||
		!strings.Contains(err.Error(), "XDG_RUNTIME_DIR") {
		t.Errorf("got %v", err)
	}
}

// What is promised to late segments is not given away a second time, and comes back.
func TestLatePagesArePromised(t *testing.T) {
	before := promised.Load()
	const n = 3 * fillBytes
	s, err := NewLateSegment("late", n)
	if err != nil {
		t.Fatal(err)
	}
	if !overcommits() {
		t.Skip("the kernel counts the pages that it promises: there are no late segments")
	}
	for left := int64(n); ; left -= fillBytes {
		if got := promised.Load() - before; got != left {
			t.Errorf("%d bytes are promised, want %d", got, left)
		}
		if left == fillBytes || !s.Fill() {
			break
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if got := promised.Load(); got != before {
		t.Errorf("%d bytes are promised to nobody", got-before)
	}
}

// OpenSegment takes the descriptor over also when it fails.
func TestOpenSegmentClosesWhatItCannotMap(t *testing.T) {
	bell, err := NewPolledBell()
	if err != nil {
		t.Fatal(err)
	}
	defer bell.Close()
	// a number that nobody takes meanwhile
	fd, err := unix.FcntlInt(uintptr(bell.FD()), unix.F_DUPFD_CLOEXEC, 500)
	if err != nil {
		t.Fatal(err)
	}
	if s, err := OpenSegment(fd); err == nil {
		t.Errorf("an eventfd was mapped: %v", s)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != unix.EBADF {
		t.Errorf("the descriptor is still open: %v", err)
	}
}

// A bell that is closed rings in its set no more, also where a worker has a copy of it.
func TestAClosedBellLeavesItsSet(t *testing.T) {
	set, err := NewBellSet()
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	bell, err := set.NewBell()
	if err != nil {
		t.Fatal(err)
	}
	other, err := unix.Dup(bell.FD())
	if err != nil {
		t.Fatal(err)
	}
	worker := OpenBell(other)
	defer worker.Close()
	rings := func() (rang bool) {
		if err := set.raw.Control(func(fd uintptr) { rang = set.look(fd) }); err != nil {
			t.Fatal(err)
		}
		return rang
	}
	if worker.Ring(); !rings() {
		t.Error("an open bell does not ring")
	}
	if err := bell.Close(); err != nil {
		t.Fatal(err)
	}
	if worker.Ring(); rings() {
		t.Error("a closed bell rings")
	}
}
