package arena

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// The control socket on which a worker and its agent speak. The functions without a receiver keep
// nothing, so any goroutine may call them; only Dial blocks.

// MaxMessage is the largest message on the control socket, in bytes.
const MaxMessage = 64 << 10

// maxFDs is the largest number of descriptors beside a message.
const maxFDs = 4

// Listener accepts workers on a Unix socket that only its owner can open. Any goroutine may call
// its methods; only Accept blocks.
type Listener struct {
	l    *net.UnixListener // the socket
	wait func()            // waits until the process may have a free descriptor; tests replace it
}

// Listen makes a Unix socket at a path, which only its owner can open (mode 0600). The caller
// closes it.
func Listen(path string) (*Listener, error) {
	if len(path) > 100 {
		return nil, fmt.Errorf("arena: the socket path %q is longer than the 100 bytes that the "+
			"kernel takes: set a shorter XDG_RUNTIME_DIR or TMPDIR", path)
	}
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return nil, fmt.Errorf("arena: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, fmt.Errorf("arena: %w", err)
	}
	return &Listener{l, func() { time.Sleep(retryAccept) }}, nil
}

// retryAccept is how long Accept waits for a descriptor where the process has none left.
const retryAccept = 50 * time.Millisecond

// Accept blocks until the next worker dials, or Close is called. Another user's process is turned
// away (root is let in). While this process has too many open files, workers wait to be accepted.
// The caller closes the Conn.
func (l *Listener) Accept() (*Conn, error) {
	for {
		c, err := l.l.AcceptUnix()
		if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
			l.wait() // after Close the next AcceptUnix fails
			continue
		}
		if err != nil {
			return nil, err
		}
		if conn, err := newConn(c); err == nil && conn.sameUser() {
			return conn, nil
		}
		c.Close()
	}
}

// sameUser reports whether the other side is a process of this user, or of root.
func (c *Conn) sameUser() bool {
	cred, err := unix.GetsockoptUcred(c.fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	return err == nil && (cred.Uid == uint32(os.Getuid()) || cred.Uid == 0)
}

// PID returns the number of the process that opened the socket; 0 = one that is not to be seen from
// here.
func (c *Conn) PID() int {
	cred, err := unix.GetsockoptUcred(c.fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return 0
	}
	return int(cred.Pid)
}

// Close stops accepting, so that a blocked Accept fails, and removes the socket from its path.
func (l *Listener) Close() error { return l.l.Close() }

// Conn is a control socket: JSON objects, one a packet, with descriptors beside them. Any goroutine
// may call its methods; only Send and Receive block.
type Conn struct {
	c  *net.UnixConn
	fd int // the descriptor of c, for Bell.WaitOrHangUp; valid until Close
}

// newConn returns a Conn over a connection, which the caller closes if it fails.
func newConn(c *net.UnixConn) (*Conn, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("arena: %w", err)
	}
	conn := &Conn{c: c}
	err = raw.Control(func(fd uintptr) { conn.fd = int(fd) })
	return conn, err
}

// Dial connects with the agent's socket at a path, and blocks until it is connected or the context
// ends. The caller closes the Conn.
func Dial(ctx context.Context, path string) (*Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unixpacket", path)
	if err != nil {
		return nil, fmt.Errorf("arena: %w", err)
	}
	conn, err := newConn(c.(*net.UnixConn))
	if err != nil {
		c.Close()
		return nil, err
	}
	return conn, nil
}

// Send writes v as JSON, with copies of the descriptors. It blocks while the socket is full. Any
// goroutine may call it.
func (c *Conn) Send(v any, fds ...int) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("arena: %w", err)
	}
	if len(b) > MaxMessage {
		return fmt.Errorf("arena: a message of %d bytes; the limit is %d: send less at once",
			len(b), MaxMessage)
	}
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	_, _, err = c.c.WriteMsgUnix(b, rights, nil)
	return err
}

// Receive blocks until a packet comes and returns its bytes, in buf, and its descriptors, which are
// the caller's and closed on exec. io.EOF means that the other side is gone. A packet larger than
// buf, or with more than maxFDs descriptors, is an error and drops its descriptors.
func (c *Conn) Receive(buf []byte) ([]byte, []int, error) {
	rights := make([]byte, unix.CmsgSpace(maxFDs*4))
	n, rn, flags, _, err := c.c.ReadMsgUnix(buf, rights)
	if err != nil {
		return nil, nil, err
	}
	fds, err := parseRights(rights[:rn])
	if err != nil {
		return nil, nil, err
	}
	if flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		CloseFDs(fds)
		return nil, nil, fmt.Errorf(
			"arena: a packet larger than %d bytes or with more than %d descriptors", len(buf),
			maxFDs)
	}
	if n == 0 {
		CloseFDs(fds)
		return nil, nil, io.EOF
	}
	return buf[:n], fds, nil
}

// parseRights returns the descriptors in the control data of a packet. The caller owns them.
func parseRights(b []byte) ([]int, error) {
	if len(b) == 0 {
		return nil, nil
	}
	messages, err := unix.ParseSocketControlMessage(b)
	if err != nil {
		return nil, fmt.Errorf("arena: %w", err)
	}
	var fds []int
	for i := range messages {
		got, err := unix.ParseUnixRights(&messages[i])
		if err != nil && !errors.Is(err, unix.EINVAL) {
			CloseFDs(fds)
			return nil, fmt.Errorf("arena: %w", err)
		}
		fds = append(fds, got...)
	}
	return fds, nil
}

// CloseFDs closes descriptors that nobody needs.
func CloseFDs(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

// HangUp shuts the conversation down after a last word, v as JSON, which LastWord of the other
// side returns. It does not block: where the socket is full, or v too long, v is left out.
func (c *Conn) HangUp(v any) error {
	if b, err := json.Marshal(v); err == nil && len(b) <= MaxMessage {
		_ = c.now(func(fd int) error { return unix.Sendmsg(fd, b, nil, nil, unix.MSG_DONTWAIT) })
	}
	return c.Shutdown()
}

// LastWord returns what the other side said last, in buf, and nobody has received; nil = nothing.
// It is for the time after the other side has hung up. It does not block.
func (c *Conn) LastWord(buf []byte) []byte {
	n := 0
	err := c.now(func(fd int) (err error) {
		n, _, err = unix.Recvfrom(fd, buf, unix.MSG_DONTWAIT|unix.MSG_PEEK)
		return err
	})
	if err != nil || n <= 0 {
		return nil
	}
	return buf[:n]
}

// now calls f with the descriptor of the socket, which stays open meanwhile.
func (c *Conn) now(f func(fd int) error) error {
	raw, err := c.c.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = f(int(fd)) })
	return cmp.Or(err, failed)
}

// Shutdown hangs up: both sides see the end, and Receive returns. Close still has to follow.
func (c *Conn) Shutdown() error { return errors.Join(c.c.CloseRead(), c.c.CloseWrite()) }

// Close ends the conversation and frees the socket.
func (c *Conn) Close() error { return c.c.Close() }
