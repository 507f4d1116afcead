//go:build !linux

package arena

import (
	"context"
	"errors"
)

// This file lets programs be built that cannot use an arena on their system: nothing in it works,
// blocks or does I/O, and any goroutine may call it.

// ErrUnsupported says why arenas exist on Linux only.
var ErrUnsupported = errors.New(
	"arena: jobs run on Linux: this system has no memfd, eventfd and seals")

// MaxMessage is the largest message on the control socket, in bytes.
const MaxMessage = 64 << 10

// Segment is shared memory with a fixed size.
type Segment struct{ Mem []byte }

// NewSegment returns ErrUnsupported.
func NewSegment(string, int64, ...int) (*Segment, error) { return nil, ErrUnsupported }

// NewLateSegment returns ErrUnsupported.
func NewLateSegment(string, int64, ...int) (*Segment, error) { return nil, ErrUnsupported }

// NewResult returns ErrUnsupported.
func NewResult(string, int64, ...int) (*Segment, error) { return nil, ErrUnsupported }

// OpenSegment returns ErrUnsupported.
func OpenSegment(int) (*Segment, error) { return nil, ErrUnsupported }

// FD returns -1, which is no descriptor.
func (s *Segment) FD() int { return -1 }

// Fill returns false: there is nothing to fill.
func (s *Segment) Fill() bool { return false }

// Close does nothing.
func (s *Segment) Close() error { return nil }

// Window is where a worker sees a shared result.
type Window struct{ Mem []byte }

// NewWindow returns ErrUnsupported.
func NewWindow(int) (*Window, error) { return nil, ErrUnsupported }

// TryMemory returns nil: it is not known here.
func TryMemory(int) error { return nil }

// Show returns ErrUnsupported.
func (w *Window) Show(int) error { return ErrUnsupported }

// MakeOwn returns ErrUnsupported.
func (w *Window) MakeOwn() error { return ErrUnsupported }

// Close does nothing.
func (w *Window) Close() error { return nil }

// Bell wakes a parked thread of another process.
type Bell struct{}

// BellSet is a set of bells on which one goroutine waits.
type BellSet struct{}

// NewBellSet returns ErrUnsupported.
func NewBellSet() (*BellSet, error) { return nil, ErrUnsupported }

// NewBell returns ErrUnsupported.
func (s *BellSet) NewBell() (*Bell, error) { return nil, ErrUnsupported }

// Ring does nothing.
func (s *BellSet) Ring() {}

// Wait returns ErrUnsupported.
func (s *BellSet) Wait() error { return ErrUnsupported }

// Close does nothing.
func (s *BellSet) Close() error { return nil }

// NewPolledBell returns ErrUnsupported.
func NewPolledBell() (*Bell, error) { return nil, ErrUnsupported }

// NewThreadBell returns ErrUnsupported.
func NewThreadBell() (*Bell, error) { return nil, ErrUnsupported }

// OpenBell returns a bell that cannot ring.
func OpenBell(int) *Bell { return &Bell{} }

// FD returns -1, which is no descriptor.
func (b *Bell) FD() int { return -1 }

// Ring does nothing.
func (b *Bell) Ring() {}

// Wait returns ErrUnsupported.
func (b *Bell) Wait() error { return ErrUnsupported }

// WaitOrHangUp returns ErrUnsupported.
func (b *Bell) WaitOrHangUp(*Conn) error { return ErrUnsupported }

// Close does nothing.
func (b *Bell) Close() error { return nil }

// Listener accepts workers.
type Listener struct{}

// Listen returns ErrUnsupported.
func Listen(string) (*Listener, error) { return nil, ErrUnsupported }

// Accept returns ErrUnsupported.
func (l *Listener) Accept() (*Conn, error) { return nil, ErrUnsupported }

// Close does nothing.
func (l *Listener) Close() error { return nil }

// Conn is a control socket.
type Conn struct{}

// Dial returns ErrUnsupported.
func Dial(context.Context, string) (*Conn, error) { return nil, ErrUnsupported }

// PID returns 0, which is no process.
func (c *Conn) PID() int { return 0 }

// Send returns ErrUnsupported.
func (c *Conn) Send(any, ...int) error { return ErrUnsupported }

// Receive returns ErrUnsupported.
func (c *Conn) Receive([]byte) ([]byte, []int, error) { return nil, nil, ErrUnsupported }

// HangUp does nothing.
func (c *Conn) HangUp(any) error { return nil }

// LastWord returns nothing.
func (c *Conn) LastWord([]byte) []byte { return nil }

// Close does nothing.
func (c *Conn) Close() error { return nil }

// Shutdown does nothing.
func (c *Conn) Shutdown() error { return nil }

// CloseFDs does nothing.
func CloseFDs([]int) {}

// YieldCore does nothing.
func YieldCore() {}
