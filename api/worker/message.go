// Package worker is the protocol between a worker and its agent: one struct for each message that
// travels as a JSON object on the control socket. docs/formats/arena.md lists the messages, and
// the Python package sends and reads the same objects. Nothing here does I/O: package fabric/arena
// carries the messages. A message belongs to one goroutine at a time.
package worker

import (
	"encoding/json"
	"fmt"

	"github.com/shoal-ml/shoal/internal/strict"
)

// The environment variables that a launcher sets for a worker.
const (
	EnvSocket = "SHOAL_SOCKET"  // path of the agent's control socket
	EnvJob    = "SHOAL_JOB"     // name of the job
	EnvJobRun = "SHOAL_JOB_RUN" // id of the run of the job, the same on all hosts
	EnvRank   = "SHOAL_RANK"    // number of the worker, as in JoinRequest
	EnvSize   = "SHOAL_SIZE"    // number of workers that the job begins with
	EnvToken  = "SHOAL_TOKEN"   // secret with which the worker joins
)

// Message is a pointer to one of the structs of this package: a request of a worker, or a reply of
// its agent.
type Message interface {
	// TypeName returns the value of the field "type" that tells this message from the others.
	TypeName() string

	// header returns the message's own header, for Tag to fill in.
	header() *Header
}

// Header holds the fields that all messages have. Tag fills it in.
type Header struct {
	// Type says which message this is.
	Type string `json:"type"`
	// Serial is a number that a worker chooses for its request and that the reply repeats. Zero
	// means that the request has none.
	Serial uint64 `json:"serial,omitempty"`
}

// header implements Message for every struct that holds a Header: it returns h itself.
func (h *Header) header() *Header { return h }

// Tag fills in the header of m, which must be done before the message is sent, and returns m.
func Tag(m Message, serial uint64) Message {
	*m.header() = Header{Type: m.TypeName(), Serial: serial}
	return m
}

// UnknownType is the error for a message whose type is not part of this protocol.
type UnknownType struct{ Name string }

// Error says which type it is.
func (e *UnknownType) Error() string { return fmt.Sprintf("%q names no message", e.Name) }

// ParseRequest reads a request. An unknown type and an unknown field are errors. Whatever could be
// read is returned beside the error: the serial, so that the error can be sent as the reply, and
// the message, so that a worker of another protocol can be told so.
func ParseRequest(packet []byte) (m Message, serial uint64, err error) {
	var h Header
	if err := json.Unmarshal(packet, &h); err != nil {
		return nil, 0, err
	}
	create, known := requests[h.Type]
	if !known {
		return nil, h.Serial, &UnknownType{h.Type}
	}
	m = create()
	return m, h.Serial, strict.JSON(packet, m)
}

// ParseReply reads a reply into the struct of the type that is due. An ErrorReply is returned as
// the error, and into stays as it is. Unknown fields are ignored.
func ParseReply(packet []byte, into Message) error {
	var h Header
	if err := json.Unmarshal(packet, &h); err != nil {
		return err
	}
	switch h.Type {
	case into.TypeName():
		return json.Unmarshal(packet, into)
	case (&ErrorReply{}).TypeName():
		var refusal ErrorReply
		if err := json.Unmarshal(packet, &refusal); err != nil {
			return err
		}
		return &refusal
	}
	return fmt.Errorf("the agent answered %q where %q was due", h.Type, into.TypeName())
}
