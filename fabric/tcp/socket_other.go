//go:build !linux

package tcp

import "net"

// A socket on other systems than Linux, which does what package net does. The functions without a
// receiver keep nothing, so any goroutine may call them.

// socket is a TCP connection. One goroutine may read while another one writes.
type socket struct{ *net.TCPConn }

// newSocket returns a socket that takes over a connection.
func newSocket(c *net.TCPConn) *socket { return &socket{c} }

// limitUnsent would have the kernel take no more than so many bytes ahead of what the cable takes.
// It does nothing here.
func (*socket) limitUnsent(int) {}

// writeVectors writes all of some vectors, and blocks until the kernel has taken them.
func (s *socket) writeVectors(vectors [][]byte) error {
	rest := net.Buffers(vectors)
	_, err := rest.WriteTo(s.TCPConn)
	return err
}

// writeNow would write as much of b as the kernel takes without waiting. Here it writes nothing,
// and returns 0: the next Flush of a wire writes all.
func (*socket) writeNow([]byte) (written int) { return 0 }

// limitBacklog would have the kernel keep no more than so many connections that were not accepted
// yet. It does nothing here.
func limitBacklog(*net.TCPListener, int) {}

// descriptorLimit would be how many descriptors this process may have open; 0 = that is not known.
func descriptorLimit() uint64 { return 0 }
