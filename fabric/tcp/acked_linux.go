package tcp

import (
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shoal-ml/shoal/fabric"
)

// This file asks the kernel about TCP, for judgements of silence and of what cables carry. Any
// goroutine may call its functions, which do not wait.

// timeSinceAck returns for how long the kernel at the other end has acknowledged nothing; false:
// that is not known. The kernel acknowledges also while the process there is not scheduled or is
// stopped; a host without power, or whose cable is cut, does not.
func timeSinceAck(c *net.TCPConn) (ago time.Duration, ok bool) {
	info, ok := tcpInfo(c)
	if !ok {
		return 0, false
	}
	return time.Duration(info.Last_ack_recv) * time.Millisecond, true
}

// ackOwedFor returns for how long at most the kernel at the other end owes an acknowledgement of
// what has left: the time since its last one, which is longer after a while in which nothing was
// sent. It is 0 if none is owed, or that is not known.
func ackOwedFor(c *net.TCPConn) time.Duration {
	info, ok := tcpInfo(c)
	if !ok || info.Unacked == 0 {
		return 0
	}
	return time.Duration(info.Last_ack_recv) * time.Millisecond
}

// sentOn returns what a connection has carried so far; false: that is not known. The kernel counts
// the time in ticks of its clock, mostly 4 ms.
func sentOn(c *net.TCPConn) (s fabric.Sent, ok bool) {
	info, ok := tcpInfo(c)
	if !ok {
		return s, false
	}
	return fabric.Sent{Bytes: info.Bytes_acked,
		Busy: time.Duration(info.Busy_time) * time.Microsecond}, true
}

// tcpInfo returns what the kernel knows of a connection (TCP_INFO); false: it does not say.
func tcpInfo(c *net.TCPConn) (*unix.TCPInfo, bool) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, false
	}
	var info *unix.TCPInfo
	controlErr := raw.Control(func(fd uintptr) {
		info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
	})
	return info, controlErr == nil && err == nil
}
