package arena

import (
	"encoding/binary"
	"fmt"
)

// View is what a worker is told when the members of its job change. It is a value; SetView and
// Control.View copy it into and out of the control block.
type View struct {
	Generation uint64 // number of the membership
	Rank, Size int    // this worker's rank, and the number of members
	Steps      uint64 // number of steps that the job has committed
	Joined     int    // number of members that are new; they have the highest ranks
	Released   bool   // whether this worker is no member any more
	New        bool   // whether this worker has just entered
	// Stopped says that all members were let go, because the job was asked to end. Rank and Size
	// are those of the last step then.
	Stopped bool
	Setting bool // whether the job's setting was changed since it began
	// Park says that the members are to make a checkpoint now, and to end.
	Park   bool
	Cursor []byte // the position in the job's data, encoded; nil = none was stated
}

// The bits of a view's flags.
const (
	viewReleased = 1
	viewNew      = 2
	viewStopped  = 4
	viewSetting  = 8
	viewPark     = 16
)

// SetView writes a view into the control block. The agent does so, on its engine's thread, before
// it completes the call that tells the worker to look. A cursor of more than MaxCursor bytes is
// refused, and nothing is written.
func (c *Control) SetView(v View) error {
	if len(v.Cursor) > MaxCursor {
		return fmt.Errorf("arena: a cursor of %d bytes; a view has room for %d", len(v.Cursor),
			MaxCursor)
	}
	le, flags := binary.LittleEndian, uint32(0)
	if v.Released {
		flags |= viewReleased
	}
	if v.New {
		flags |= viewNew
	}
	if v.Stopped {
		flags |= viewStopped
	}
	if v.Setting {
		flags |= viewSetting
	}
	if v.Park {
		flags |= viewPark
	}
	le.PutUint64(c.mem[offGeneration:], v.Generation)
	le.PutUint32(c.mem[offViewRank:], uint32(v.Rank))
	le.PutUint32(c.mem[offViewSize:], uint32(v.Size))
	le.PutUint64(c.mem[offStep:], v.Steps)
	le.PutUint32(c.mem[offJoined:], uint32(v.Joined))
	le.PutUint32(c.mem[offViewFlags:], flags)
	le.PutUint32(c.mem[offCursorLen:], uint32(len(v.Cursor)))
	copy(c.mem[offCursor:headerBytes], v.Cursor)
	return nil
}

// View returns a copy of the view that the agent wrote. The worker calls it when a completion has
// told it to look.
func (c *Control) View() View {
	le := binary.LittleEndian
	flags := le.Uint32(c.mem[offViewFlags:])
	v := View{Generation: le.Uint64(c.mem[offGeneration:]),
		Rank: int(le.Uint32(c.mem[offViewRank:])), Size: int(le.Uint32(c.mem[offViewSize:])),
		Steps: le.Uint64(c.mem[offStep:]), Joined: int(le.Uint32(c.mem[offJoined:])),
		Released: flags&viewReleased != 0, New: flags&viewNew != 0,
		Stopped: flags&viewStopped != 0, Setting: flags&viewSetting != 0,
		Park: flags&viewPark != 0}
	if n := min(int(le.Uint32(c.mem[offCursorLen:])), MaxCursor); n > 0 {
		v.Cursor = append([]byte(nil), c.mem[offCursor:offCursor+n]...)
	}
	return v
}
