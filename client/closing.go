package client

// How Close waits for goroutines. A call that is under way uses the bells, the control block and
// the arena. None of them may be closed meanwhile: the number of a bell's descriptor can soon be
// another file's, and the memory is unmapped.

// beginUse keeps the bells, the control block and the arena open until endUse is called; ErrClosed
// if they are closed already. Any goroutine may call it, without k.mu; it blocks only while stop
// ends.
func (k *calls) beginUse() error {
	k.life.RLock()
	if k.closed.Load() {
		k.life.RUnlock()
		return ErrClosed
	}
	return nil
}

// endUse ends what a beginUse without an error began.
func (k *calls) endUse() { k.life.RUnlock() }

// ringOwn wakes whoever waits at this side's bell. A context can call ringOwn long after the wait,
// when the descriptor's number is another file's: then nothing is rung. Any goroutine may call it,
// without k.mu.
func (k *calls) ringOwn() {
	if k.beginUse() == nil {
		k.own.Ring()
		k.endUse()
	}
}

// stop ends all waits, and blocks until no goroutine uses the bells, the control block and the
// arena any more. Close calls it, without k.mu and outside of beginUse; a second call ends nothing.
func (k *calls) stop() {
	if k.beginUse() == nil {
		k.mu.Lock()
		k.closed.Store(true)
		k.woken.Broadcast()
		k.mu.Unlock()
		k.own.Ring()
		k.endUse()
	}
	k.life.Lock()
	defer k.life.Unlock()
}
