package tcp

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// acked returns for how long the kernel at the other end has acknowledged nothing. It does so also
// while the process there is not scheduled or is stopped; what does not, is a host without power or
// behind a cut cable.
func acked(c *net.TCPConn) (ago time.Duration, ok bool) {
	info, ok := infoOf(c)
	if !ok {
		return 0, false
	}
	return time.Duration(info.Last_ack_recv) * time.Millisecond, true
}

// owed returns for how long the kernel at the other end owes an acknowledgement of what has left: 0
// if it owes none.
func owed(c *net.TCPConn) time.Duration {
	info, ok := infoOf(c)
	if !ok || info.Unacked == 0 {
		return 0
	}
	return time.Duration(info.Last_ack_recv) * time.Millisecond
}

// infoOf returns what the kernel knows of a connection (TCP_INFO); false: it does not say.
func infoOf(c *net.TCPConn) (*unix.TCPInfo, bool) {
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
