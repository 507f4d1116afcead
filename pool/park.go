package pool

import "fmt"

// What people do with jobs that are to go on later. A job that a person has parked gets no slots
// until somebody resumes it. The keeper calls Park and Resume for them, on the goroutine that uses
// the Machine.

// Park ends a job at a checkpoint when its step ends, or keeps one that waits from starting, until
// Resume. A job that cannot be parked goes on, and the last of its changes says why.
func (m *Machine) Park(now int64, id, who string) error {
	m.at(now)
	e, err := m.findOpen(id)
	switch {
	case err != nil:
		return err
	case e.State == Stopping:
		return fmt.Errorf("job %s is about to end, as %s has asked, so it is not parked", id,
			e.StopBy)
	case e.ParkBy != "":
		return nil
	}
	m.hold(e, who)
	switch {
	case !e.started() && e.Want.total() > 0:
		m.waitAgain(e, e.Because)
	case e.Want.total() > 0:
		m.recordChange(e, 0, e.Because, Expectation{})
		e.Want = Slots{}
	}
	m.touch(e)
	e.intent = e.version
	return m.coreUpdate(e)
}

// hold notes that a person wants a job to get no slots.
func (m *Machine) hold(e *entry, who string) {
	e.ParkBy, e.Because = who, "parked by "+who
}

// Resume gives a job that a person has parked back to the policy.
func (m *Machine) Resume(now int64, id, who string) error {
	m.at(now)
	e, err := m.findOpen(id)
	switch {
	case err != nil:
		return err
	case e.ParkBy == "":
		err = fmt.Errorf("job %s is %s, and nobody has parked it", id, e.State)
		if e.Want.total() == 0 {
			err = fmt.Errorf("%w: the pool starts it by itself when it has slots", err)
		}
		return err
	}
	e.ParkBy, e.Because = "", "resumed by "+who
	m.touch(e)
	return m.coreUpdate(e)
}
