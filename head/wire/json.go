package wire

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"

	"github.com/shoal-ml/shoal/head/form"
	"github.com/shoal-ml/shoal/member"
)

// The kinds of messages and of payloads, each known by the name of its type. docs/formats/hosts.md
// lists them.
var (
	messages = []any{member.Prepare{}, member.Accept{}, member.Promise{}, member.Accepted{},
		member.Refused{}, member.Decision{}, Frame{}}
	upward = []any{Report{}, Posted{}, Began{}, Asked{}, Ended{}, Executed{}, Stated{}, Shaped{},
		WantsGroup{}, Ungroups{}, Withdraws{}, LinkLost{}, Noted{}}
	downward = []any{Snapshot{}, Begin{}, Exec{}, Drops{}, Commit{}, Starts{}, Stops{}, Groups{},
		Disbands{}, Refuses{}, Leaves{}, Ends{}, Decides{}}
)

// Append appends to b a message as bytes, as docs/formats/hosts.md has them. Memory of calls and
// errors as values stay behind.
func Append(b []byte, m Message) []byte {
	if b, is := AppendBinary(b, m); is {
		return b
	}
	return append(b, encodeJSON(m)...)
}

// Decode reads a message into memory of its own, as Reader.Read does.
func Decode(b []byte) (Message, error) { return new(Reader).Read(b) }

// encodeJSON returns a message as JSON. It panics where a message has a value that JSON cannot
// have.
func encodeJSON(m Message) []byte {
	var v any = m
	switch m := m.(type) {
	case Ask:
		v = m.Ask
	case Answer:
		v = m.Answer
	}
	return messageForm().Encode(v)
}

// decodeJSON reads a message from JSON, and fails for what no agent of this version sends.
func decodeJSON(b []byte) (Message, error) {
	m, err := messageForm().Decode(b)
	if unread := (form.Unread{}); errors.As(err, &unread) {
		return nil, fmt.Errorf("a message between agents that cannot be read: %w", err)
	}
	if err != nil {
		return nil, fmt.Errorf("a message between agents that cannot be: %w", err)
	}
	switch v := m.(type) {
	case member.Ask:
		return Ask{v}, nil
	case member.Answer:
		return Answer{v}, nil
	case Frame:
		return &v, nil
	}
	panic("head: a kind of message without a type")
}

// messageForm is made when the first message is: most commands send none.
var messageForm = sync.OnceValue(func() *form.Form {
	return form.New(validate,
		form.Kinds{Of: reflect.TypeFor[Payload](), List: slices.Concat(upward, downward)},
		form.Kinds{Of: reflect.TypeFor[Message](), List: messages})
})
