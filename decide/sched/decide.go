package sched

import "fmt"

// How a Machine asks its policy, by an Order or by a Share, and what it does with one that fails.
// Ready calls decide, on the goroutine that uses the Machine; the grants that follow are in
// m.grants.

// mostIdle is how often in a row a policy may have itself asked though nothing has happened, and
// change nothing, while no job runs and while some do.
const (
	mostIdle        = 1000
	mostIdleRunning = 50_000
)

// decide has the policy decide. One that fails is replaced by the default for good, and Faults says
// so.
func (m *Machine) decide() {
	happened := m.dirty
	m.again, m.dirty = Never, false
	fault := m.tryPolicy()
	if happened || len(m.grants) > 0 {
		m.idle = 0
	} else if m.idle++; fault == "" && m.again != Never &&
		(m.idle >= mostIdleRunning || m.idle >= mostIdle && len(m.running) == 0) {
		fault = fmt.Sprintf("it was asked %d times in a row, as it wanted, and starts nobody",
			m.idle)
	}
	if fault != "" {
		m.replacePolicy(fault)
		m.tryPolicy()
	}
	m.relocate()
	m.consolidate()
}

// tryPolicy has the policy decide, and returns what was wrong with it; "" = nothing.
func (m *Machine) tryPolicy() (fault string) {
	defer func() {
		if r := recover(); r != nil {
			fault = fmt.Sprint(r)
		}
	}()
	if m.policy.Order != nil {
		m.decideByOrder()
	} else {
		m.decideByShare()
	}
	return ""
}

// replacePolicy puts the default policy in the place of one that has failed.
func (m *Machine) replacePolicy(fault string) {
	if m.policy.Name == Default {
		panic("sched: the default policy fails: " + fault)
	}
	m.faults = append(m.faults, fmt.Sprintf("policy %s fails, so %s decides from now on: %s",
		m.policy.Name, Default, fault))
	m.policy, _ = Named(Default)
	m.waiting, m.unkeyed, m.memory = queue{}, nil, nil
	for _, e := range m.list {
		e.heap = -1
		if !e.ended && e.slots == 0 && m.policy.Order != nil && !e.job.held() {
			m.unkeyed = append(m.unkeyed, e)
		}
	}
}
