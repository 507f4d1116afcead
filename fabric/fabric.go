// Package fabric says what the agents of a job are to each other: a network of links that carry
// messages and data. fabric/tcp is the network between real hosts, fabric/mem the one inside a
// process, for tests; fabric/fabrictest holds what both must do.
//
// The bytes between the processes of one host are fabric/arena's.
package fabric

import (
	"context"
	"errors"
	"time"
)

// Host names an agent for as long as it lives. A host that comes back is another Host.
type Host string

// Piece names a piece of data to the agent that gets it: which transfer it belongs to, and where in
// it it lies.
type Piece struct {
	Transfer uint64 // the number of the transfer, the same on all agents
	Part     uint32 // the run of bytes within the transfer, as sender and receiver have agreed
	Offset   uint64 // where the payload begins in the part, in bytes
	Length   uint32 // the length of the payload, in bytes; at most MaxPiece

	// Streams is on how many streams of a link its sender lets pieces travel beside each other; 0
	// counts as 1. The receiver is not told.
	Streams uint8
}

// Bounds of what one frame carries, in bytes, and of how many streams a link has for pieces.
const (
	MaxPiece   = 1 << 20
	MaxMessage = 4 << 20
	MaxStreams = 4
)

// Handler is told what arrives. Calls about one peer's messages come one after another, in the
// order in which they were sent, Up before all others and Down after all others. Pieces come in any
// order, on goroutines of their own, and may come before a message that was sent earlier. No call
// may wait for the network, and none may call Network.Close. The first calls can come before the
// network has been returned to its maker.
type Handler interface {
	// Up tells of a new link.
	Up(peer Host)
	// Message hands over a message; b is valid during the call only.
	Message(from Host, b []byte)
	// Place returns the memory for a piece, p.Length bytes, or nil to throw it away. It may block
	// until the receiver knows the transfer; what this peer sent later may wait behind it. Down
	// does not wait for it: it must then return, and what it returns is not touched.
	Place(from Host, p Piece) []byte
	// Arrived tells that the payload of a piece is where Place said.
	Arrived(from Host, p Piece)
	// Down tells that a link is gone, and why: nothing more will come from this peer, ever, and
	// neither the memory that Place gave nor the payloads that were to be sent there are touched
	// any more. Every Up is followed by one Down, also when the network closes.
	Down(peer Host, err error)
}

// Network links an agent with every other agent of the job. Any goroutine may call its methods;
// only Seek and Close wait.
type Network interface {
	// Self is this agent.
	Self() Host
	// Send queues a message of at most MaxMessage bytes; b may be used again at once. A peer
	// without a link gets nothing: its Down has been told or will be.
	Send(to Host, b []byte)
	// SendPiece queues a piece. The payload must stay as it is until its transfer is over.
	SendPiece(to Host, p Piece, payload []byte)
	// Unused calls f once, at the next moment in which no payload that was queued, to any peer, is
	// touched any more. That may be at once, and on any goroutine; f must not wait.
	Unused(f func())
	// Drop ends the link to a peer and does not wait; Down is told with this error, from elsewhere.
	// The peer is told the reason if it can still be reached.
	Drop(peer Host, why error)
	// Suspect says that a peer is gone, by somebody who may be wrong: for ten seconds, silence of
	// its process counts as early as that of its host does, and a peer that is heard stays. It does
	// not wait; without a link to the peer nothing happens.
	Suspect(peer Host)
	// Seek asks the agents to which the link is gone whether they live, and returns for each that
	// answers whom it has links with. It waits for the network.
	Seek(ctx context.Context) map[Host][]Host
	// Close ends all links, after the messages that are queued, and waits until no call to the
	// Handler is under way or will come.
	Close() error
}

// Sent is what a stream of a link has carried so far.
type Sent struct {
	Bytes uint64        // bytes that the peer's kernel has acknowledged
	Busy  time.Duration // how long some were on their way, or waited in the kernel to be
	Held  time.Duration // for how long a limit has held some, beside others that were on their way
}

// Counter is a Network that knows what its links have carried.
type Counter interface {
	// Sent returns what the streams of data of the link with each peer have carried, in a new map.
	// It does not wait, and any goroutine may call it.
	Sent() map[Host][]Sent
}

// Limiter is a Network whose pieces can be held to a rate, so that jobs share a card as somebody
// says.
type Limiter interface {
	// Limit holds the payloads of the pieces to a peer to so many bytes a second from now on; 0 =
	// there is no limit, as at first. "" as the peer stands for all of them together, in addition
	// to the limits of each. Messages are not held, and a limit ends with its link. It does not
	// wait, and any goroutine may call it.
	Limit(peer Host, bytesPerSecond float64)
}

// Reasons why a link is gone. Down is told an error that is one of these, or the one of Drop.
var (
	ErrSilent = errors.New("nothing was heard from it for longer than its rhythm explains")
	// ErrClosed follows a goodbye from either side, or the end of the process at the other end.
	ErrClosed = errors.New("the link was closed")
)
