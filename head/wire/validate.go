package wire

import (
	"cmp"
	"fmt"
	"math"
	"reflect"
	"slices"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/data/cursor"
	"github.com/shoal-ml/shoal/head/form"
	"github.com/shoal-ml/shoal/head/meshes"
	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/setting"
	"github.com/shoal-ml/shoal/state/digest"
	"github.com/shoal-ml/shoal/state/layout"
	"github.com/shoal-ml/shoal/topo"
)

// What numbers may be, well beyond what there is.
const (
	maxElements   = 1 << 48
	maxDims       = 8 // as a descriptor has room for
	maxWorkers    = 1 << 30
	maxGeneration = member.MaxGeneration
	maxIndex      = member.MaxNumber
	maxGroup      = 1 << 30
	maxMesh       = layout.MaxText
)

// What an agent checks of messages before anything acts on them. Nothing here changes what it looks
// at, so any goroutine may call it; errors are for people.

// validate returns why a struct of a message is none that an agent sends; nil where it may be one.
// For JSON, form.Decode calls it for each struct, the inner ones first.
func validate(v any) error {
	switch v := v.(type) {
	case Frame:
		return v.validate()
	case Report:
		return cmp.Or(member.Host{Slots: v.Slots, Kind: v.Kind}.Check(),
			checkBounds("groups", len(v.Groups), 2*collective.MaxGroups, "workers to start",
				v.Ordered, collective.MaxMembers))
	case GroupReport:
		return checkBounds("group", int(v.ID)-1, maxGroup, "members", len(v.Members),
			collective.MaxMembers)
	case WantsGroup:
		return checkBounds("members", len(v.Members), collective.MaxMembers)
	case Groups:
		if v.Reason == "" &&
			(v.ID == topo.World || v.ID > maxGroup || v.Size != len(v.Members) || v.Self < 0 ||
				v.Self >= v.Size) {
			return fmt.Errorf("place %d of %d in group %d of %d members", v.Self, v.Size, v.ID,
				len(v.Members))
		}
	case Exec:
		return v.validate()
	case Set:
		return v.validate()
	case Call:
		return v.validate()
	case Commit:
		return v.validate()
	case State:
		return v.validate()
	case meshes.Shape:
		return validateShape(v)
	case Shaped:
		return checkBounds("length of a mesh", len(v.Mesh), maxMesh, "ranks", v.Ranks-1,
			collective.MaxMembers)
	case digest.Sum:
		if !v.Valid() {
			return fmt.Errorf("%v is no fingerprint", v)
		}
	case Starts:
		return checkBounds("workers to start", v.Count-1, collective.MaxMembers)
	case member.Record:
		return v.Check()
	case member.Host:
		return v.Check()
	case member.Allotment:
		return v.Check()
	case topo.View:
		return validateView(v)
	case setting.Range:
		if v.From > v.To || v.To > cursor.MaxSamples {
			return fmt.Errorf("the range %v is none of a batch", v)
		}
	case Stated:
		at := setting.Setting{Rate: v.Rate, Save: v.Save, Sync: v.Sync}
		return cmp.Or(checkBounds("first batch", int(v.First), cursor.MaxSamples),
			at.WithPeople(v.People).Validate())
	case interface{ Validate() error }: // setting, change, levers
		return v.Validate()
	case Noted:
		return checkBounds("length of a note", len(v.Data), MaxNote)
	case cursor.Cursor:
		b, err := v.AppendBinary(nil)
		if err == nil {
			_, err = cursor.Parse(b)
		}
		return err
	}
	return nil
}

// checkBounds returns an error for the first number that is negative or too large. The arguments
// come in threes: the name of a number, the number, the most that it may be.
func checkBounds(list ...any) error {
	for i := 0; i < len(list); i += 3 {
		if n, most := list[i+1].(int), list[i+2].(int); n < 0 || n > most {
			return fmt.Errorf("%s: %d is not from 0 to %d", list[i], n, most)
		}
	}
	return nil
}

// validate returns what is wrong with a frame, but for what is in its payloads. A follower begins
// with its report, and has no other; and each side has payloads of its own.
func (f *Frame) validate() error {
	if f.First == 0 || f.First > maxIndex || f.Ack > maxIndex || f.Term >= maxGeneration {
		return fmt.Errorf("payloads from number %d, %d acknowledged, of a head since generation %d",
			f.First, f.Ack, f.Term)
	}
	kinds := downward
	if f.Up {
		kinds = upward
	}
	for i, b := range f.Payloads {
		t := reflect.TypeOf(b)
		if t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		if !slices.ContainsFunc(kinds, func(k any) bool { return reflect.TypeOf(k) == t }) {
			return fmt.Errorf("%s is not for this direction", form.JSONName(t.Name()))
		}
		if _, is := b.(Report); f.Up && is != (f.First == 1 && i == 0) {
			return fmt.Errorf(
				"body %d is %s; the first of a follower is its report, and no other one",
				f.First+uint64(i), form.JSONName(t.Name()))
		}
	}
	return nil
}

// validate returns what is wrong with an Exec, but for what is in its sets.
func (e *Exec) validate() error {
	if e.Batch == 0 || len(e.Hosts) == 0 || len(e.Sets) == 0 {
		return fmt.Errorf("batch %x of %d hosts and %d collectives", e.Batch, len(e.Hosts),
			len(e.Sets))
	}
	for _, s := range e.Sets {
		strange := func(of int) bool {
			return of < -1 || of >= len(e.Hosts) || of < 0 && s.Err == ""
		}
		if s.Err == "" && s.Route.Strategy == nil {
			return fmt.Errorf("batch %x has a collective without a route", e.Batch)
		}
		if len(s.Of) != len(s.Calls) || slices.ContainsFunc(s.Of, strange) {
			return fmt.Errorf("batch %x has %d calls of the hosts %d among %d", e.Batch,
				len(s.Calls), s.Of, len(e.Hosts))
		}
	}
	return nil
}

// validate returns what is wrong with a call by itself: kinds, lengths and bounds.
func (c *Call) validate() error {
	barrier := c.Kind == collective.Barrier // nothing else of it counts
	switch {
	case !c.Kind.Valid(), !barrier && (!c.DType.Valid() || !c.Reduction.Valid()):
		return fmt.Errorf("a call that cannot be: kind %d, dtype %d, reduction %d", c.Kind, c.DType,
			c.Reduction)
	case !barrier && c.Far == nil:
		return fmt.Errorf("a call without its lengths")
	case c.Far != nil &&
		(c.Far.In < 0 || c.Far.Out < 0 || c.Far.In > maxElements || c.Far.Out > maxElements):
		return fmt.Errorf("a call of %d and %d elements", c.Far.In, c.Far.Out)
	case !barrier && !c.NamesPartner() &&
		(c.Peer < collective.AnyRank || c.Peer >= collective.MaxMembers):
		return fmt.Errorf("a call with peer %d", c.Peer)
	case len(c.Shared.Name) > collective.MaxName || c.Shared.Off < 0:
		return fmt.Errorf("a call into byte %d of a shared result with a name of %d bytes",
			c.Shared.Off, len(c.Shared.Name))
	case len(c.Splits) > collective.MaxMembers, len(c.Shape) > maxDims:
		return fmt.Errorf("a call with %d splits and %d dimensions", len(c.Splits), len(c.Shape))
	case !barrier && (slices.ContainsFunc(c.Splits, isBeyondElements) ||
		slices.ContainsFunc(c.Shape, isBeyondElements)):
		return fmt.Errorf("a call with splits %v and shape %v", c.Splits, c.Shape)
	}
	return nil
}

// isBeyondElements reports whether a number is negative, or more elements than memory can have.
func isBeyondElements(n int) bool { return n < 0 || n > math.MaxInt64/2 }

// validatePayload returns why a payload of a binary frame is none that an agent sends.
func validatePayload(b Payload) error {
	switch b := b.(type) {
	case *Posted:
		return b.Call.validate()
	case *Exec:
		for i := range b.Sets {
			if err := b.Sets[i].validate(); err != nil {
				return err
			}
			for k := range b.Sets[i].Calls {
				if err := b.Sets[i].Calls[k].validate(); err != nil {
					return err
				}
			}
		}
		return b.validate()
	case *Commit:
		return b.validate()
	}
	return nil
}

// validate returns an error for a collective without calls.
func (s *Set) validate() error {
	if len(s.Calls) == 0 {
		return fmt.Errorf("a collective without calls")
	}
	return nil
}

// validate returns an error for an entry whose number cannot be.
func (c *Commit) validate() error {
	if c.Index == 0 || c.Index > maxIndex || c.First > cursor.MaxSamples ||
		c.Sized > maxIndex {
		return fmt.Errorf("entry %d of the log, with a first batch of %d samples", c.Index, c.First)
	}
	return nil
}

// validate returns what is wrong with a state, but for what is in it.
func (s *State) validate() error {
	if s.First > cursor.MaxSamples || s.Sized > maxIndex ||
		s.Trial != nil && s.Trial.Phase != setting.Entered {
		return fmt.Errorf("a state with a first batch of %d samples and trial %+v", s.First,
			s.Trial)
	}
	return checkBounds("joined", s.Joined, maxWorkers)
}

// validateView returns what is wrong with a list of members.
func validateView(v topo.View) error {
	if n := topo.CountDifferent(v.Workers()); n != v.Size() || n > collective.MaxMembers ||
		v.Generation >= maxGeneration {
		return fmt.Errorf("generation %d has %d members, %d of them different", v.Generation,
			v.Size(), n)
	}
	return nil
}

// validateShape returns what is wrong with a shape.
func validateShape(s meshes.Shape) error {
	if s.State == "" || s.Next == "" && len(s.Order)+len(s.Leaving)+len(s.Kinds) > 0 {
		return fmt.Errorf("a shape without a state, or with an order and no mesh")
	}
	for _, h := range s.Kinds {
		if err := topo.CheckKind(h.Kind); err != nil {
			return err
		}
	}
	for _, list := range [2][]topo.WorkerID{s.Workers, s.Order} {
		if topo.CountDifferent(list) != len(list) {
			return fmt.Errorf("mesh %s has a worker twice", s.Mesh)
		}
	}
	return checkBounds("length of a mesh", max(len(s.Mesh), len(s.Next)), maxMesh, "ranks",
		max(len(s.Workers), len(s.Order)), collective.MaxMembers)
}
